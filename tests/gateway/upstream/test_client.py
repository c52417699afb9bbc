"""The HTTP client over real sockets: keep-alive, cancel, limits, and everything that isn't an answer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tandem.config.gateway_upstream import UpstreamConfig
from tandem.core.errors import ConfigError
from tandem.gateway.upstream.address import parse_address
from tandem.gateway.upstream.answer import UpstreamAnswer
from tandem.gateway.upstream.client import UpstreamClient
from tandem.gateway.upstream.failures import (
    AnswerTooLarge,
    ConnectFailed,
    ConnectionBroken,
    Malformed,
    Silent,
    UpstreamFailure,
)
from tests.gateway.fakes import Call, FakeEngine, Script, engines


async def ask(client: UpstreamClient, engine: FakeEngine, max_bytes: int = 1 << 20) -> tuple[int, bytes]:
    answer = await client.send(engine.url, "POST", "/x", {"A": "b"}, b"{}")
    try:
        return answer.status, await answer.read(max_bytes)
    finally:
        answer.close()


def raw(data: bytes, then: str = "silence") -> Script:
    async def script(call: Call) -> None:
        call.raw(data)
        await call.writer.drain()
        if then == "close":
            call.close()
        elif then == "silence":
            await call.silence()

    return script


async def answers(call: Call) -> None:
    call.answer(b"fine")


async def test_a_connection_is_used_again() -> None:
    async with engines(answers) as (engine,):
        client = UpstreamClient()
        for _ in range(5):
            assert await ask(client, engine) == (200, b"fine")
        assert client.num_open == 1
        assert len({id(call.writer) for call in engine.calls}) == 1
        assert engine.calls[0].headers["host"] == f"127.0.0.1:{engine.port}"
        assert engine.calls[0].headers["content-length"] == "2"
        await client.close()


async def test_a_unix_socket(tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    server = await asyncio.start_unix_server(serve, tmp_path / "s")
    client = UpstreamClient()
    answer = await client.send(f"unix://{tmp_path}/s", "GET", "/", {}, None)
    assert await answer.read(10) == b"ok"
    await client.close()
    server.close()


@pytest.mark.parametrize(
    ("data", "then", "failure"),
    [
        (b"", "close", ConnectionBroken),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "close", ConnectionBroken),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", "close", ConnectionBroken),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n", "close", ConnectionBroken),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "silence", Malformed),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "silence", Malformed),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000, "silence", AnswerTooLarge),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4000\r\n\r\n" + b"x" * 4000, "silence", AnswerTooLarge),
    ],
)
async def test_what_is_no_answer(data: bytes, then: str, failure: type[UpstreamFailure]) -> None:
    async with engines(raw(data, then)) as (engine,):
        client = UpstreamClient()
        with pytest.raises(failure):
            await ask(client, engine, max_bytes=1000)
        await client.close()


async def test_a_body_that_ends_with_its_connection() -> None:
    async with engines(raw(b"HTTP/1.1 200 OK\r\n\r\nall of it", "close")) as (engine,):
        client = UpstreamClient()
        assert await ask(client, engine) == (200, b"all of it")
        assert client.num_open == 0


async def test_announcements_before_the_answer_are_passed_over() -> None:
    data = b"HTTP/1.1 103 Early Hints\r\nX: y\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    async with engines(raw(data, "return")) as (engine,):
        client = UpstreamClient()
        assert await ask(client, engine) == (200, b"ok")
        await client.close()


async def test_a_second_answer_nobody_asked_for_closes_the_connection() -> None:
    """Else it would be taken for the answer to the next request."""
    one = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    async with engines(raw(one + one, "return")) as (engine,):
        client = UpstreamClient()
        assert await ask(client, engine) == (200, b"ok")
        assert client.num_open == 0 or await ask(client, engine) == (200, b"ok")
        assert len({id(call.writer) for call in engine.calls}) == len(engine.calls)
        await client.close()


async def test_nobody_there_and_nobody_in_time() -> None:
    client = UpstreamClient(UpstreamConfig(connect_timeout_s=0.1))
    with pytest.raises(ConnectFailed):
        await client.send("http://127.0.0.1:1", "GET", "/", {}, None)


async def test_closing_an_answer_is_seen_by_the_engine_at_once() -> None:
    async with engines(raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")) as (engine,):
        client = UpstreamClient()
        answer = await client.send(engine.url, "POST", "/", {}, b"")
        assert engine.num_running == 1
        answer.close()
        await asyncio.wait_for(engine.idle(), 1.0)
        assert client.num_open == 0


async def test_cancelling_while_waiting_closes_too() -> None:
    async with engines(raw(b"")) as (engine,):
        client = UpstreamClient()
        sending = asyncio.ensure_future(client.send(engine.url, "POST", "/", {}, b""))
        await engine.has_arrived()
        sending.cancel()
        await asyncio.wait_for(engine.idle(), 1.0)


async def test_silence_ends_with_the_reason_that_was_given() -> None:
    async with engines(raw(b"")) as (engine,):
        client = UpstreamClient()
        seen: list[UpstreamAnswer] = []
        sending = asyncio.ensure_future(client.send(engine.url, "POST", "/", {}, b"", watch=seen.append))
        await engine.has_arrived()
        seen[0].fail(Silent("too long"))
        with pytest.raises(Silent, match="too long"):
            await sending
        await client.close()


async def test_kept_connections_are_bounded_and_grow_old() -> None:
    async with engines(answers) as (engine,):
        client = UpstreamClient(UpstreamConfig(max_idle_connections=2))
        await asyncio.gather(*(ask(client, engine) for _ in range(10)))
        await asyncio.sleep(0)
        assert client.num_open <= 2
        await client.close()
        client = UpstreamClient(UpstreamConfig(keepalive_s=0.0))
        await ask(client, engine)
        await asyncio.sleep(0.01)
        await ask(client, engine)
        assert engine.calls[-1].writer is not engine.calls[-2].writer
        await client.close()


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://user:secret@host/", "http://h:x", "unix://", "nothing"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_address(url)
    assert "secret" not in str(caught.value)
