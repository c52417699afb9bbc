"""A client that leaves or reads slowly, and an engine that fails: nobody else is touched, and nothing is lost."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tandem.core.errors import Unavailable
from tandem.engine.messages import NewRequest, Output
from tandem.protocol.chat import ChatCompletionRequest
from tandem.protocol.sse import SseParser
from tests.engine.front.fakes import PATIENCE_S, FakeEngine, FakeText, failing, say
from tests.engine.front.served import Running, encode, running, stream_events

USER = [{"role": "user", "content": "hi"}]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


async def send(server: Running, path: str, body: Any, sock: socket.socket | None = None) -> asyncio.StreamWriter:
    """Send a request and leave the answer unread."""
    return (await connect(server, path, body, sock))[1]


async def connect(
    server: Running, path: str, body: Any, sock: socket.socket | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = server.address.removeprefix("http://").split(":")
    if sock is None:
        reader, writer = await asyncio.open_connection(host, int(port))
    else:
        await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
        reader, writer = await asyncio.open_connection(sock=sock)
    data = encode(body)
    writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    return reader, writer


def holding_after(num_tokens: int) -> Any:
    async def script(engine: FakeEngine, request: NewRequest) -> AsyncIterator[Output]:
        for _ in range(num_tokens):
            yield Output(request.request_id, 0, [97])
        await engine.hold()

    return script


@pytest.mark.parametrize("num_tokens", [0, 1, 5])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("path", "fields", "num_requests"),
    [
        (CHAT, {"messages": USER}, 1),
        (CHAT, {"messages": USER, "n": 3}, 1),
        (COMPLETIONS, {"prompt": ["a", "b"], "n": 2}, 2),
    ],
)
async def test_leaving_aborts_in_every_form(
    num_tokens: int, stream: bool, path: str, fields: dict[str, Any], num_requests: int
) -> None:
    engine = FakeEngine(holding_after(num_tokens))
    async with running(engine) as server:
        writer = await send(server, path, {"model": "m", "stream": stream} | fields)
        await engine.wait_until(lambda engine: len(engine.requests) == num_requests)
        writer.transport.abort()
        await engine.wait_until(lambda engine: len(engine.aborted) == num_requests)
        await asyncio.wait_for(server.front.wait_idle(), PATIENCE_S)
        assert server.front.admission.num_seqs == 0
        metrics = await server.metrics()
    assert metrics['tandem_requests_finished_total{finish_reason="abort"}'] == num_requests
    assert metrics["tandem_generation_tokens_total"] == num_tokens * num_requests


async def test_leaving_while_the_prompt_is_rendered_reaches_no_engine() -> None:
    class SlowText(FakeText):
        def render_chat(self, request: ChatCompletionRequest) -> list[int]:
            rendering.set()
            assert release.wait(PATIENCE_S)
            return super().render_chat(request)

    rendering, release = threading.Event(), threading.Event()
    engine = FakeEngine(say(b"ok"))
    async with running(engine, text=SlowText()) as server:
        writer = await send(server, CHAT, {"model": "m", "messages": USER})
        await asyncio.to_thread(rendering.wait, PATIENCE_S)
        # A slow prompt holds up neither the loop nor the count of who waits.
        assert (await server.get("/version"))[0] == 200
        assert server.front.admission.num_waiting_seqs == 1
        writer.transport.abort()
        async with asyncio.timeout(PATIENCE_S):
            await server.front.wait_idle()
        assert server.front.admission.num_seqs == 0
        release.set()
        assert engine.requests == []
        assert (await server.post(CHAT, {"model": "m", "messages": USER}))[0] == 200


async def test_openais_client_leaves_a_stream() -> None:
    engine = FakeEngine(holding_after(3))
    async with running(engine) as server:
        stream = await server.openai.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        async for _ in stream:
            break
        await stream.close()
        await engine.wait_until(lambda engine: len(engine.aborted) == 1)


async def test_a_finished_request_is_not_aborted() -> None:
    engine = FakeEngine(say(b"ab"))
    async with running(engine) as server:
        await stream_events(server, CHAT, {"model": "m", "messages": USER, "stream": True})
        await server.post(CHAT, {"model": "m", "messages": USER, "n": 2})
    assert engine.aborted == []


async def test_a_slow_reader_delays_nobody_and_loses_nothing() -> None:
    num_outputs, size = 4000, 2000
    num_yielded, blocked = 0, asyncio.Event()

    async def flood(engine: FakeEngine, request: NewRequest) -> AsyncIterator[Output]:
        nonlocal num_yielded
        if bytes(request.prompt_token_ids) != b"slow":
            async for output in say(b"quick")(engine, request):
                yield output
            return
        for number in range(num_outputs):
            num_yielded += 1
            last = number == num_outputs - 1
            yield Output(request.request_id, 0, [120] * size, finish_reason="length" if last else None)
            if number == 100:
                blocked.set()

    engine = FakeEngine(flood)
    async with running(engine) as server:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        reader, writer = await connect(server, COMPLETIONS, {"model": "m", "prompt": "slow", "stream": True}, sock)
        await asyncio.wait_for(blocked.wait(), PATIENCE_S)
        for _ in range(5):
            status, answer = await server.post(COMPLETIONS, {"model": "m", "prompt": "other"})
            assert (status, answer["choices"][0]["text"]) == (200, "quick")
        assert num_yielded < num_outputs, "the slow stream waits for its reader"
        text = await read_text(reader)
        writer.close()
    assert len(text) == num_outputs * size


async def read_text(reader: asyncio.StreamReader) -> str:
    """The joined text of a raw chunked HTTP answer."""
    await reader.readuntil(b"\r\n\r\n")
    parser, texts = SseParser(), []
    while length := int(await reader.readline(), 16):
        events = parser.feed(await reader.readexactly(length))
        await reader.readexactly(2)
        texts += [json.loads(event.data)["choices"][0]["text"] for event in events if event.data != b"[DONE]"]
    return "".join(texts)


@pytest.mark.parametrize(("path", "fields"), [(CHAT, {"messages": USER}), (COMPLETIONS, {"prompt": ["a", "b"]})])
async def test_an_engine_that_dies_in_the_middle_is_an_error_event(path: str, fields: dict[str, Any]) -> None:
    engine = FakeEngine(holding_after(2))
    async with running(engine) as server:
        async with server.http.post(path, json={"model": "m", "stream": True} | fields) as response:
            await response.content.readuntil(b"\n\n")
            engine.die("out of memory")
            rest = await asyncio.wait_for(response.content.read(), PATIENCE_S)
        events = [json.loads(event.data) for event in SseParser().feed(rest)]
        assert (await server.get("/health"))[0] == 503
        assert (await server.metrics())['tandem_requests_finished_total{finish_reason="error"}'] >= 1
    assert events[-1]["error"]["message"] == "The engine died: out of memory"
    assert events[-1]["error"]["type"] == "server_error"
    assert all(choice["finish_reason"] is None for event in events[:-1] for choice in event["choices"])


async def test_openais_client_raises_on_an_error_event() -> None:
    import openai

    engine = FakeEngine(holding_after(2))
    async with running(engine) as server:
        stream = await server.openai.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        with pytest.raises(openai.APIError, match="out of memory"):
            await consume_while_dying(stream, engine)


async def consume_while_dying(stream: Any, engine: FakeEngine) -> None:
    async for _ in stream:
        engine.die("out of memory")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_failure_before_the_first_token_is_an_http_error(stream: bool) -> None:
    engine = FakeEngine(holding_after(0))
    async with running(engine) as server:
        waiting = asyncio.create_task(server.post(CHAT, {"model": "m", "messages": USER, "stream": stream}))
        await engine.wait_until(lambda engine: len(engine.requests) == 1)
        engine.die("out of memory")
        status, answer = await waiting
    assert (status, answer["error"]["code"]) == (500, "engine_failed")


async def test_a_request_that_the_engine_fails_is_a_500_and_others_go_on() -> None:
    async def script(engine: FakeEngine, request: NewRequest) -> AsyncIterator[Output]:
        if bytes(request.prompt_token_ids) == b"bad":
            yield Output(request.request_id, 0, [], finish_reason="error", error="No room for this one.")
            return
        async for output in say(b"fine")(engine, request):
            yield output

    async with running(FakeEngine(script)) as server:
        status, answer = await server.post(COMPLETIONS, {"model": "m", "prompt": "bad"})
        assert (status, answer["error"]["message"]) == (500, "No room for this one.")
        assert (await server.post(COMPLETIONS, {"model": "m", "prompt": "good"}))[0] == 200


async def test_an_engine_that_drains_is_a_503() -> None:
    engine = FakeEngine(failing(Unavailable("draining", retry_after_s=3)))
    body = {"model": "m", "messages": USER}
    async with running(engine) as server, server.http.post(CHAT, json=body) as response:
        assert response.status == 503
        assert response.headers["Retry-After"] == "3"


async def test_outputs_that_end_too_soon_are_an_error() -> None:
    async def short(engine: FakeEngine, request: NewRequest) -> AsyncIterator[Output]:
        yield Output(request.request_id, 0, [97])

    async with running(FakeEngine(short)) as server:
        status, _ = await server.post(CHAT, {"model": "m", "messages": USER})
    assert status == 500
