"""The two ends of the gateway benchmark as bare uvloop protocols: an upstream that costs next to nothing, and clients
that measure. Nothing here is Tandem's, so that no gateway is measured with its own tools.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import cast

ANSWER = json.dumps(
    {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "bench",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "word " * 40}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 30, "completion_tokens": 40, "total_tokens": 70},
    }
).encode()  # fmt: skip
MODELS = b'{"object":"list","data":[{"id":"bench","object":"model","created":1,"owned_by":"x"}]}'
_CHUNK = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"bench","choices":[{"index":0,'
    b'"delta":{"content":"%.6f "},"logprobs":null,"finish_reason":null}]}\n\n'
)
_USAGE = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"bench","choices":[],'
    b'"usage":{"prompt_tokens":30,"completion_tokens":40,"total_tokens":70}}\n\n'
)
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
)
CHUNKS_PER_S = 20


def _framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _plain(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


class Upstream(asyncio.Protocol):
    """Answers by what it sees: a stream paced at 20 chunks a second, or a static answer."""

    answer = _plain(ANSWER)
    models = _plain(MODELS)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.buffer = b""
        self.missing = 0
        self.timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.timer is not None:
            self.timer.cancel()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self.buffer[:end].lower()
        at = head.find(b"content-length:")
        length = 0 if at < 0 else int(head[at + 15 :].split(b"\r\n", 1)[0])
        if len(self.buffer) < end + 4 + length:
            return
        body, self.buffer = self.buffer[end + 4 : end + 4 + length], self.buffer[end + 4 + length :]
        if head.startswith(b"get"):
            self.transport.write(self.models)
        elif b'"stream":true' in body or b'"stream": true' in body:
            at = body.find(b'"max_')
            number = int(body[at:].split(b":", 1)[1].split(b",")[0].strip(b" }"))
            self.transport.write(_STREAM_HEAD)
            self.send(number, b'"include_usage"' in body, self.loop.time())
        else:
            self.transport.write(self.answer)

    def send(self, left: int, with_usage: bool, due: float) -> None:
        if self.transport.is_closing():
            return
        if left == 0:
            last = _CHUNK.replace(b'"finish_reason":null', b'"finish_reason":"stop"') % time.monotonic()
            tail = _framed(last) + (_framed(_USAGE) if with_usage else b"")
            self.transport.write(tail + _framed(b"data: [DONE]\n\n") + b"0\r\n\r\n")
            return
        self.transport.write(_framed(_CHUNK % time.monotonic()))
        due += 1 / CHUNKS_PER_S
        self.timer = self.loop.call_at(due, self.send, left - 1, with_usage, due)


def make_request(body: bytes, key: str | None) -> bytes:
    auth = f"Authorization: Bearer {key}\r\n" if key else ""
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n{auth}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


@dataclass
class Figures:
    """Seconds."""

    latencies: list[float] = field(default_factory=list)
    num_errors: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0

    def quantile(self, q: float) -> float:
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else float("nan")


class PlainClient(asyncio.Protocol):
    """One connection; `ask` sends and returns when a whole answer with a length has come."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.buffer = b""
        self.waiter: asyncio.Future[bool] | None = None

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self.buffer[:end].lower()
        at = head.find(b"content-length:")
        if at < 0:
            whole = self.buffer.endswith(b"0\r\n\r\n")
        else:
            whole = len(self.buffer) >= end + 4 + int(head[at + 15 :].split(b"\r\n", 1)[0])
        if whole and self.waiter is not None:
            is_good = self.buffer.startswith(b"HTTP/1.1 200")
            self.buffer = b""
            self.waiter.set_result(is_good)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(False)

    async def ask(self, request: bytes) -> bool:
        self.waiter = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await self.waiter


async def closed_loop(port: int, request: bytes, num_clients: int, seconds: float) -> Figures:
    """Each client asks again as soon as it was answered."""
    loop, figures = asyncio.get_running_loop(), Figures()
    stop_s = time.perf_counter() + seconds

    async def client() -> None:
        _, protocol = await loop.create_connection(PlainClient, "127.0.0.1", port)
        while (started := time.perf_counter()) < stop_s:
            is_good = await protocol.ask(request)
            figures.latencies.append(time.perf_counter() - started)
            if not is_good:
                figures.num_errors += 1
                if protocol.transport.is_closing():
                    return
        protocol.transport.close()

    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(num_clients)))
    figures.wall_s = time.perf_counter() - started
    return figures


async def open_loop(port: int, request: bytes, rate: float, seconds: float) -> Figures:
    """Arrivals at even intervals, whether or not earlier ones were answered."""
    loop, figures = asyncio.get_running_loop(), Figures()
    idle: list[PlainClient] = []
    running: set[asyncio.Task[None]] = set()

    async def one(due: float) -> None:
        protocol = idle.pop() if idle else (await loop.create_connection(PlainClient, "127.0.0.1", port))[1]
        is_good = await protocol.ask(request)
        figures.latencies.append(time.perf_counter() - due)
        figures.num_errors += not is_good
        if not protocol.transport.is_closing():
            idle.append(protocol)

    start = time.perf_counter()
    for number in range(int(rate * seconds)):
        due = start + number / rate
        if (wait := due - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        task = asyncio.ensure_future(one(due))
        running.add(task)
        task.add_done_callback(running.discard)
    await asyncio.gather(*running)
    figures.wall_s = time.perf_counter() - start
    for protocol in idle:
        protocol.transport.close()
    return figures


class StreamClient(asyncio.Protocol):
    """Counts chunks and how late each is, by the time that the upstream wrote into it."""

    def __init__(self, request: bytes, figures: Figures, done: asyncio.Future[None]) -> None:
        self.request, self.figures, self.done = request, figures, done
        self.tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        at = data.find(b'"content":"')
        while at >= 0:
            try:
                self.figures.latencies.append(now - float(data[at + 11 : data.index(b" ", at)]))
            except ValueError:
                self.figures.num_errors += 1
            at = data.find(b'"content":"', at + 11)
        if b"[DONE]" in data and not self.done.done():
            self.done.set_result(None)
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.figures.num_errors += 1
            self.done.set_result(None)


async def streams(port: int, request: bytes, number: int, seconds: float, cpu_s: Callable[[], float]) -> Figures:
    """`number` streams at once. Only what happens while all are open is counted, for `seconds`: opening a stream costs
    what a request costs, and belongs to those figures."""
    loop, figures, done = asyncio.get_running_loop(), Figures(), []
    for index in range(number):
        future: asyncio.Future[None] = loop.create_future()
        done.append(future)
        await loop.create_connection(partial(StreamClient, request, figures, future), "127.0.0.1", port)
        if index % 5 == 4:
            await asyncio.sleep(2.0 * 5 / number)
    await asyncio.sleep(1.0)
    figures.latencies.clear()
    started, before = time.perf_counter(), cpu_s()
    await asyncio.sleep(seconds)
    figures.wall_s, figures.cpu_s = time.perf_counter() - started, cpu_s() - before
    steady, figures.latencies = figures.latencies, []
    await asyncio.wait_for(asyncio.gather(*done), 120)
    figures.latencies = steady
    return figures
