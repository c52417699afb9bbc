"""The process provider with real processes: what starts, what is started again, and that nothing is ever left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest

from tandem.autoscaler.providers.base import EngineSpec, EventKind, Instance
from tandem.autoscaler.providers.process import ProcessProvider
from tandem.config.gateway_replicas import ProcessConfig
from tandem.core.errors import ConfigError, NotFound

STUB = Path(__file__).with_name("engine_stub.py")
QUICK = ProcessConfig(restart_delay_s=0.01, max_restart_delay_s=0.04, stop_timeout_s=5.0, drain_timeout_s=1.0)


def command(behaviour: str = "well", address: str = "--port {port}") -> str:
    return f"{sys.executable} -I -S {STUB} {address} --behaviour {behaviour}"


class Bench:
    """A provider, what it told, and what its engines wrote."""

    def __init__(self, provider: ProcessProvider, lines: list[tuple[str, str]]) -> None:
        self.provider, self.lines = provider, lines
        self.events: list[tuple[EventKind, str, str]] = []
        provider.on_event(lambda kind, instance: self.events.append((kind, instance.id, instance.reason)))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110 -- processes tell nobody
                await asyncio.sleep(0.01)

    async def numbers(self, word: str, count: int = 1) -> list[int]:
        """Process ids that engines wrote behind `word`."""

        def found() -> list[int]:
            return [int(line.split()[1]) for _, line in self.lines if line.startswith(word + " ")]

        await self.until(lambda: len(found()) >= count)
        return found()

    async def get(self, instance: Instance) -> str:
        """The stub's answer: cores | OMP_NUM_THREADS | CUDA_VISIBLE_DEVICES | TANDEM_API_KEY | EXTRA."""
        await self.until(lambda: instance.url != "")
        is_unix = instance.url.startswith("unix://")
        connector = aiohttp.UnixConnector(instance.url[7:]) if is_unix else aiohttp.TCPConnector()
        async with asyncio.timeout(20), aiohttp.ClientSession(connector=connector) as session:
            while True:
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.get("http://localhost/" if is_unix else instance.url) as response:
                        return await response.text()
                await asyncio.sleep(0.01)


@pytest.fixture
async def make() -> AsyncIterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def build(*specs: EngineSpec, config: ProcessConfig = QUICK, **most: int) -> Bench:
        lines: list[tuple[str, str]] = []
        provider = ProcessProvider(
            specs, config=config, max_instances=most, write_line=lambda name, line: lines.append((name, line))
        )
        made.append(Bench(provider, lines))
        return made[-1]

    yield build
    for bench in made:
        await bench.provider.close()


def is_running(pid: int) -> bool:
    """A zombie has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_starts_answers_and_stops(make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway's own key is no business of an engine's."""
    monkeypatch.setenv("TANDEM_API_KEY", "gateway-secret")
    core = min(os.sched_getaffinity(0))
    spec = EngineSpec("p", "m", command=command(), devices=(f"cpu:{core}",), environment={"EXTRA": "yes"})
    bench = make(spec)
    await bench.provider.scale("p", 1)
    [instance] = bench.provider.instances("p")
    assert await bench.get(instance) == f"{core}|1||-|yes"
    assert (instance.id, instance.state, instance.num_starts) == ("p-0", "running", 1)
    [pid] = await bench.numbers("engine")
    await bench.provider.scale("p", 0)
    assert not is_running(pid)
    assert instance.state == "stopped"
    assert [(kind, name) for kind, name, _ in bench.events] == [("started", "p-0"), ("stopped", "p-0")]
    assert bench.lines[0] == ("p-0", f"engine {pid} ")


async def test_a_unix_socket_that_only_this_user_can_reach(make: Callable[..., Bench]) -> None:
    bench = make(EngineSpec("p/é", "m", command=command(address="--uds {socket}")))
    await bench.provider.scale("p/é", 1)
    [instance] = bench.provider.instances("p/é")
    await bench.get(instance)
    folder = Path(instance.url[7:]).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    await bench.provider.close()
    assert not folder.exists()


async def test_scaling_up_and_down_keeps_the_oldest(make: Callable[..., Bench]) -> None:
    bench = make(EngineSpec("p", "m", command=command()), p=3)
    await bench.provider.scale("p", 3)
    urls = {instance.url for instance in bench.provider.instances("p") if await bench.get(instance)}
    assert len(urls) == 3
    await bench.provider.scale("p", 1)
    assert [instance.id for instance in bench.provider.instances("p")] == ["p-0"]
    with pytest.raises(ConfigError, match="0 to 3"):
        await bench.provider.scale("p", 4)
    with pytest.raises(NotFound):
        await bench.provider.scale("other", 1)


async def test_one_that_is_killed_is_started_again(make: Callable[..., Bench]) -> None:
    bench = make(EngineSpec("p", "m", command=command()))
    await bench.provider.scale("p", 1)
    [first] = await bench.numbers("engine")
    os.kill(first, signal.SIGKILL)
    second = (await bench.numbers("engine", 2))[1]
    assert is_running(second)
    [instance] = bench.provider.instances("p")
    assert instance.num_starts == 2
    assert bench.events[1][0] == "ended"
    assert "SIGKILL" in bench.events[1][2]


async def test_a_launcher_that_is_killed_takes_its_engine_with_it(make: Callable[..., Bench]) -> None:
    bench = make(EngineSpec("p", "m", command=command()))
    await bench.provider.scale("p", 1)
    [first] = await bench.numbers("engine")
    [instance] = bench.provider.instances("p")
    assert instance.pid is not None
    os.kill(instance.pid, signal.SIGKILL)
    await bench.numbers("engine", 2)
    assert not is_running(first)


async def test_a_crash_loop_is_visible_and_bounded(make: Callable[..., Bench]) -> None:
    bench = make(EngineSpec("p", "m", command=command("crash")))
    await bench.provider.scale("p", 1)
    [instance] = bench.provider.instances("p")
    await bench.until(lambda: instance.num_crashes_in_row >= 4)
    assert instance.is_crash_looping
    assert "exit code 3" in instance.reason
    assert "no memory for the KV cache" in instance.reason
    await bench.provider.scale("p", 0)
    count = instance.num_starts
    await asyncio.sleep(0.1)
    assert instance.num_starts == count, "stopped for good"


async def test_a_command_that_does_not_exist(make: Callable[..., Bench]) -> None:
    bench = make(EngineSpec("p", "m", command="/no/such/engine --port {port}"))
    await bench.provider.scale("p", 1)
    [instance] = bench.provider.instances("p")
    await bench.until(lambda: instance.is_crash_looping)
    assert "No such file" in instance.reason


async def test_one_that_ignores_sigterm_is_killed(make: Callable[..., Bench]) -> None:
    config = ProcessConfig(stop_timeout_s=0.05)
    bench = make(EngineSpec("p", "m", command=command("stubborn")), config=config)
    await bench.provider.scale("p", 1)
    [pid] = await bench.numbers("engine")
    await bench.provider.scale("p", 0)
    assert not is_running(pid)


async def test_grandchildren_end_too(make: Callable[..., Bench]) -> None:
    bench = make(EngineSpec("p", "m", command=command("family")))
    await bench.provider.scale("p", 1)
    [engine], [child] = await bench.numbers("engine"), await bench.numbers("child")
    os.kill(engine, signal.SIGKILL)
    await bench.numbers("engine", 2)
    assert not is_running(child), "what a crashed engine leaves would hold its memory"
    await bench.provider.close()
    assert not any(is_running(pid) for pid in await bench.numbers("child", 2))


async def test_drained_before_it_is_told_to_end(make: Callable[..., Bench]) -> None:
    bench = make(EngineSpec("p", "m", command=command()))
    await bench.provider.scale("p", 1)
    [pid] = await bench.numbers("engine")
    seen: list[bool] = []

    async def drain(instance: Instance) -> None:
        seen.append(is_running(pid))
        await asyncio.sleep(0)
        seen.append(is_running(pid))

    bench.provider.before_stop(drain)
    await bench.provider.restart("p-0")
    assert seen == [True, True]
    assert (await bench.numbers("engine", 2))[1] != pid
    with pytest.raises(NotFound):
        await bench.provider.restart("p-9")


async def test_a_drain_that_never_ends_does_not_hold_up_the_stop(make: Callable[..., Bench]) -> None:
    config = ProcessConfig(drain_timeout_s=0.02)
    bench = make(EngineSpec("p", "m", command=command()), config=config)
    await bench.provider.scale("p", 1)
    [pid] = await bench.numbers("engine")
    bench.provider.before_stop(lambda instance: asyncio.Event().wait())
    await bench.provider.scale("p", 0)
    assert not is_running(pid)


async def test_stopped_while_it_is_being_started(make: Callable[..., Bench]) -> None:
    bench = make(EngineSpec("p", "m", command=command("silent")))
    for _ in range(3):
        await bench.provider.scale("p", 1)
        await bench.provider.scale("p", 0)
    assert bench.provider.instances("p") == []


async def test_nothing_is_left_when_the_parent_is_killed(tmp_path: Path) -> None:
    """kill -9 of the gateway: engines, their children in other sessions, and the launchers all end."""
    script = tmp_path / "gateway.py"
    script.write_text(
        textwrap.dedent(f"""
        import asyncio
        from tandem.autoscaler.providers.base import EngineSpec
        from tandem.autoscaler.providers.process import ProcessProvider

        async def main():
            def write(name, line):
                print(line, flush=True)
            spec = EngineSpec("p", "m", command={command("family")!r})
            provider = ProcessProvider([spec], max_instances={{"p": 2}}, write_line=write)
            await provider.scale("p", 2)
            await asyncio.sleep(0.5)
            for instance in provider.instances("p"):
                print("launcher", instance.pid, flush=True)
            await asyncio.sleep(600)

        asyncio.run(main())
        """)
    )
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220
    assert parent.stdout is not None
    pids: dict[str, list[int]] = {"engine": [], "child": [], "launcher": []}
    try:
        while min(len(found) for found in pids.values()) < 2:
            word, pid, *_ = parent.stdout.readline().split()
            pids[word].append(int(pid))
        everybody = [pid for found in pids.values() for pid in found]
        assert all(is_running(pid) for pid in everybody)
    finally:
        parent.kill()
        parent.wait()
    until_s = time.monotonic() + 10
    while any(is_running(pid) for pid in everybody) and time.monotonic() < until_s:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    assert [pid for pid in everybody if is_running(pid)] == []


async def test_a_flood_without_line_ends_is_cut(make: Callable[..., Bench], tmp_path: Path) -> None:
    script = tmp_path / "flood.py"
    script.write_text("import sys, time\nsys.stdout.write('x' * 300_000)\nsys.stdout.flush()\ntime.sleep(600)\n")
    bench = make(EngineSpec("p", "m", command=f"{sys.executable} {script} {{port}}"))
    await bench.provider.scale("p", 1)
    await bench.until(lambda: len(bench.lines) >= 3)
    assert all(len(line) <= 8192 for _, line in bench.lines)
