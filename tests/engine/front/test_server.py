"""The server process: how it begins, drains and ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tandem.config.engine import EngineConfig
from tandem.config.server import ServerConfig
from tandem.core.errors import ConfigError
from tandem.engine.front.serving import serve
from tandem.engine.messages import NewRequest, Output
from tandem.engine.server import serve_engine
from tests.engine.front.fakes import PATIENCE_S, FakeEngine, FakeText, say

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


class Process:
    """A server in this process, and its exit code to come."""

    def __init__(self, http: aiohttp.ClientSession, exit_code: asyncio.Task[int]) -> None:
        self.http = http
        self.exit_code = exit_code

    async def status(self, path: str) -> int:
        async with self.http.get(path) as response:
            return response.status

    async def code(self) -> int:
        return await asyncio.wait_for(self.exit_code, PATIENCE_S)


@asynccontextmanager
async def started(engine: FakeEngine, *, grace_s: float = 0.0, **settings: Any) -> AsyncIterator[Process]:
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    config = ServerConfig(**({"port": 0} | settings))
    work = serve_engine(
        engine, FakeText(), config, EngineConfig(served_model_name="m"),
        on_listening=address.set_result, failure_grace_s=grace_s,
    )  # fmt: skip
    task = asyncio.create_task(work)
    connector = aiohttp.UnixConnector(config.uds) if config.uds else None
    base = "http://engine" if config.uds else await asyncio.wait_for(address, PATIENCE_S)
    await asyncio.wait_for(address, PATIENCE_S)
    async with aiohttp.ClientSession(base, connector=connector) as http:
        try:
            yield Process(http, task)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def waiting(released: asyncio.Event) -> Any:
    """One token, then the rest once released."""

    async def script(engine: FakeEngine, request: NewRequest) -> AsyncIterator[Output]:
        yield Output(request.request_id, 0, [97])
        release, death = asyncio.create_task(released.wait()), asyncio.create_task(engine.hold())
        await asyncio.wait({release, death}, return_when=asyncio.FIRST_COMPLETED)
        release.cancel()
        if death.done():
            death.result()
        death.cancel()
        yield Output(request.request_id, 0, [98], finish_reason="length")

    return script


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains(number: signal.Signals) -> None:
    released = asyncio.Event()
    engine = FakeEngine(waiting(released))
    async with started(engine) as process:
        stream = await process.http.post(CHAT, json=BODY | {"stream": True})
        await stream.content.readuntil(b"\n\n")
        os.kill(os.getpid(), number)
        while await process.status("/ready") == 200:  # noqa: ASYNC110  the signal is on its way
            await asyncio.sleep(0.001)
        assert await process.status("/ready") == 503
        assert await process.status("/health") == 200
        async with process.http.post(CHAT, json=BODY) as refused:
            assert refused.status == 503
            assert "Retry-After" in refused.headers
        assert not process.exit_code.done()
        released.set()
        rest = (await stream.content.read()).decode()
        assert await process.code() == 0
    assert '"content":"b"' in rest
    assert rest.endswith("data: [DONE]\n\n")
    assert engine.drained_s is not None
    assert len(engine.requests) == 1


async def test_a_drain_has_an_end() -> None:
    engine = FakeEngine(waiting(asyncio.Event()))
    async with started(engine, shutdown_timeout_s=0.05) as process:
        stream = await process.http.post(CHAT, json=BODY | {"stream": True})
        await stream.content.readuntil(b"\n\n")
        os.kill(os.getpid(), signal.SIGTERM)
        rest = (await stream.content.read()).decode()
        assert await process.code() == 0
    assert '"error"' in rest
    assert "[DONE]" not in rest


async def test_a_second_signal_does_not_wait() -> None:
    engine = FakeEngine(waiting(asyncio.Event()))
    async with started(engine, shutdown_timeout_s=60.0) as process:
        stream = await process.http.post(CHAT, json=BODY | {"stream": True})
        await stream.content.readuntil(b"\n\n")
        os.kill(os.getpid(), signal.SIGTERM)
        while await process.status("/ready") == 200:  # noqa: ASYNC110  the signal is on its way
            await asyncio.sleep(0.001)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await process.code() == 0
        stream.close()


async def test_an_idle_server_ends_at_once() -> None:
    async with started(FakeEngine(say(b"a")), shutdown_timeout_s=60.0) as process:
        assert await process.status("/health") == 200
        os.kill(os.getpid(), signal.SIGTERM)
        assert await process.code() == 0


async def test_a_dead_core_ends_the_server_after_telling_everybody() -> None:
    engine = FakeEngine(waiting(asyncio.Event()))
    async with started(engine, grace_s=0.3) as process:
        stream = await process.http.post(CHAT, json=BODY | {"stream": True})
        await stream.content.readuntil(b"\n\n")
        engine.die("out of memory")
        assert await process.status("/health") == 503
        assert "out of memory" in (await stream.content.read()).decode()
        assert await process.code() == 1


async def test_a_model_that_does_not_load_ends_the_server() -> None:
    engine = FakeEngine(say(b"a"))
    engine.info = None
    async with started(engine, grace_s=60.0) as process:
        assert await process.status("/ready") == 503
        engine.die("model is damaged")
        assert await process.code() == 1


async def test_a_unix_socket_is_taken_over_from_the_dead_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with started(FakeEngine(say(b"hey")), uds=str(path)) as process:
        async with process.http.post(CHAT, json=BODY) as response:
            assert (await response.json())["choices"][0]["message"]["content"] == "hey"
        with pytest.raises(ConfigError, match="another server"):
            await serve(web.Application(), ServerConfig(uds=str(path)))
        os.kill(os.getpid(), signal.SIGTERM)
        assert await process.code() == 0
    assert not path.exists()
    path.write_text("mine")
    with pytest.raises(ConfigError, match="not a socket"):
        await serve(web.Application(), ServerConfig(uds=str(path)))


async def test_a_port_in_use_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        config = ServerConfig(port=taken.getsockname()[1])
        with pytest.raises(ConfigError, match="can't listen on"):
            await serve_engine(FakeEngine(say(b"")), FakeText(), config, EngineConfig())


PROGRAM = """
import sys
from tandem.config.engine import EngineConfig
from tandem.config.server import ServerConfig
from tandem.engine.server import run_server
from tandem.observability.logs import setup_logging
from tests.engine.front.fakes import FakeEngine, FakeText, say

async def connect():
    return FakeEngine(say(b"hello"))

setup_logging("info", "json")
sys.exit(run_server(connect, FakeText(), ServerConfig(port=0), EngineConfig(served_model_name="m")))
"""


async def test_run_server_as_a_process() -> None:
    with subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", PROGRAM], stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]
    ) as process:
        assert process.stderr is not None
        address = json.loads(process.stderr.readline())["message"].removeprefix("listening on ")
        async with aiohttp.ClientSession(address) as http, http.post(CHAT, json=BODY) as response:
            assert (await response.json())["choices"][0]["message"]["content"] == "hello"
        process.terminate()
        log = [json.loads(line) for line in process.stderr]
        assert process.wait(PATIENCE_S) == 0
    assert any("POST /v1/chat/completions 200" in line["message"] for line in log)
    assert any("shutting down" in line["message"] for line in log)
