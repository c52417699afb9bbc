"""One engine process under watch: started, started again when it ends, stopped. Knows nothing of pools or scaling.

The process that is started is `launcher.py`, and the engine below it. The launcher's standard input is the rope between
us: dropping it (also by dying) ends the engine and all that it forked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from tandem.autoscaler.providers.base import EventKind, Instance
from tandem.autoscaler.providers.devices import Placement
from tandem.config.gateway_replicas import ProcessConfig
from tandem.config.reading import OTHER_VARIABLES
from tandem.core.clock import Clock
from tandem.core.errors import ConfigError

_LAUNCHER: Final = Path(__file__).with_name("launcher.py")
_KEPT_LINES: Final = 20
_MAX_LINE_BYTES: Final = 8192
_READ_BYTES: Final = 65536
_KILL_TIMEOUT_S: Final = 10.0
_OUTPUT_TIMEOUT_S: Final = 2.0
_NOT_STARTED: Final = 127
_KILLED: Final = 137
_OURS: Final = "TANDEM_"
"""Environment variables with the gateway's settings, keys among them: not the engine's business, which gets flags."""
_PASSED_ON: Final = OTHER_VARIABLES | {"TANDEM_HASH_SEED"}
_log = logging.getLogger(__name__)


class Launch(NamedTuple):
    """What to run, decided anew for each start: a port may have been taken meanwhile."""

    command: list[str]
    url: str
    environment: dict[str, str]
    placement: Placement


class _End(NamedTuple):
    code: int
    ran_s: float


class Supervised:
    """`run` goes on until `stop`. Events go to `tell`, lines of the engine's output to `write_line`."""

    def __init__(
        self, instance: Instance, prepare: Callable[[], Launch], config: ProcessConfig, clock: Clock,
        tell: Callable[[EventKind, Instance], None], write_line: Callable[[str, str], None],
    ) -> None:  # fmt: skip
        self.instance = instance
        self._prepare = prepare
        self._config = config
        self._clock = clock
        self._tell = tell
        self._write_line = write_line
        self._process: asyncio.subprocess.Process | None = None
        self._is_stopping = asyncio.Event()

    async def run(self) -> None:
        """Starts it, waits for its end, waits a while, and again."""
        while not self._is_stopping.is_set():
            end = await self._run_once()
            if self._is_stopping.is_set():
                break
            delay_s = self._note_end(end)
            self._tell("ended", self.instance)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_stopping.wait(), delay_s)
        self.instance.state = "stopped"
        self.instance.pid = None

    async def stop(self) -> None:
        """SIGTERM, and after the time for it the rope is dropped. Returns when nothing of it runs any more; `run`
        returns too. Cancelled, it is quick instead of kind."""
        self._is_stopping.set()
        self.instance.state = "stopping"
        process = self._process
        if process is None:
            return
        try:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(self._config.stop_timeout_s):
                await process.wait()
        except TimeoutError:
            _log.warning(
                "engine %s did not end within %g s and is killed", self.instance.id, self._config.stop_timeout_s
            )
        finally:
            await asyncio.shield(self._kill(process))

    async def _run_once(self) -> _End:
        """Whatever happens, nothing of it is left running afterwards."""
        try:
            launch = self._prepare()
            process = await self._start(launch)
        except (OSError, ConfigError) as error:
            self.instance.last_lines = [f"it can't be started: {error}"]
            return _End(_NOT_STARTED, 0.0)
        self._process = process
        self._note_start(launch, process)
        output = asyncio.create_task(self._pass_output_on(process))
        try:
            if not self._is_stopping.is_set():  # else it was stopped while it was being started
                await _ended(process.pid)
        finally:
            await asyncio.shield(self._kill(process))
            self._process = None
            await asyncio.wait([output], timeout=_OUTPUT_TIMEOUT_S)
            output.cancel()
        code = process.returncode
        return _End(_KILLED if code is None else code, self._clock.now() - self.instance.started_s)

    async def _start(self, launch: Launch) -> asyncio.subprocess.Process:
        cores = launch.placement.cores
        options = ["--cores", ",".join(map(str, cores))] if cores else []
        return await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", str(_LAUNCHER), *options, "--", *launch.command,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            env=_environment() | launch.environment, start_new_session=True,
        )  # fmt: skip

    async def _kill(self, process: asyncio.subprocess.Process) -> None:
        """Drops the rope; should the launcher itself have been killed, or be stuck, its process group goes by force."""
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(_KILL_TIMEOUT_S):
                await _ended(process.pid)
        except TimeoutError:
            _log.error("the launcher of engine %s doesn't end", self.instance.id)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(TimeoutError):  # so that its exit code is known
            await asyncio.wait_for(process.wait(), _OUTPUT_TIMEOUT_S)

    def _note_start(self, launch: Launch, process: asyncio.subprocess.Process) -> None:
        instance = self.instance
        instance.url, instance.pid, instance.state = launch.url, process.pid, "running"
        instance.num_starts += 1
        instance.started_s = self._clock.now()
        instance.last_lines = []
        _log.info("engine %s started, process %d, at %s", instance.id, process.pid, instance.url)
        self._tell("started", instance)

    def _note_end(self, end: _End) -> float:
        """How long to wait before it is started again."""
        instance, config = self.instance, self._config
        instance.num_crashes_in_row = 1 if end.ran_s >= config.stable_after_s else instance.num_crashes_in_row + 1
        instance.is_crash_looping = instance.num_crashes_in_row >= config.crashes_to_report
        delay_s = restart_delay_s(instance.num_crashes_in_row, config)
        instance.state, instance.pid = "waiting", None
        said = f"; it last wrote: {instance.last_lines[-1]}" if instance.last_lines else ""
        loop = f" ({instance.num_crashes_in_row} times in a row)" if instance.is_crash_looping else ""
        instance.reason = f"ended with {describe_code(end.code)} after {end.ran_s:.1f} s{loop}{said}"
        _log.warning("engine %s %s; it is started again in %.1f s", instance.id, instance.reason, delay_s)
        return delay_s

    async def _pass_output_on(self, process: asyncio.subprocess.Process) -> None:
        """Line by line, until the engine has closed its output. An endless line is cut, not kept."""
        assert process.stdout is not None, "asked for a pipe"
        rest = b""
        while data := await process.stdout.read(_READ_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._got_line(line)
            if len(rest) > _MAX_LINE_BYTES:
                self._got_line(rest)
                rest = b""
        if rest:
            self._got_line(rest)

    def _got_line(self, line: bytes) -> None:
        text = line[:_MAX_LINE_BYTES].decode("utf-8", "replace").rstrip("\r")
        if text.strip():
            self.instance.last_lines = [*self.instance.last_lines[1 - _KEPT_LINES :], text]
        self._write_line(self.instance.id, text)


async def _ended(pid: int) -> None:
    """Returns when the process has ended, whether or not somebody still holds its output open."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(_OURS) or name in _PASSED_ON}


def restart_delay_s(num_crashes: int, config: ProcessConfig) -> float:
    """Twice as long for each crash in a row, and never longer than the longest."""
    return min(config.max_restart_delay_s, config.restart_delay_s * 2.0 ** min(max(0, num_crashes - 1), 30))


def describe_code(code: int) -> str:
    """ "exit code 1", "SIGKILL". The launcher says signals as shells do."""
    number = -code if code < 0 else code - 128
    with contextlib.suppress(ValueError):
        if code < 0 or code > 128:
            return signal.Signals(number).name
    return f"exit code {code}"
