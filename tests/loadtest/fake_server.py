"""An OpenAI-compatible server of scripts: each answer is a list of pauses and bytes, on a real port.

It answers as fast as Python can, so that it can also be the far end of a measurement of the load generator.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any, cast

import httptools
import msgspec

Piece = float | bytes | None
"""A pause in seconds; bytes to write; None: close the connection."""
Script = Callable[[str, dict[str, Any]], Iterator[Piece]]
"""(path, body) → the answer, its head included."""

STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
MODEL = "fake"


def chunk(data: bytes) -> bytes:
    """One piece of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(body: dict[str, Any] | str) -> bytes:
    text = body if isinstance(body, str) else json.dumps(body)
    return f"data: {text}\n\n".encode()


def delta(**fields: Any) -> bytes:
    return event({"choices": [{"index": 0, "delta": fields, "finish_reason": None}]})


def text(words: str) -> bytes:
    """A piece of a completion, which has no deltas."""
    return event({"choices": [{"index": 0, "text": words, "finish_reason": None}]})


def finish(prompt_tokens: int, completion_tokens: int, reason: str = "length") -> bytes:
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    return (
        event({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
        + event({"choices": [], "usage": usage})
        + event("[DONE]")
    )


def plain(status: int, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    return b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
        status,
        len(data),
        data,
    )


def words_of(body: dict[str, Any]) -> int:
    texts = [m["content"] for m in body.get("messages", [])] or [body.get("prompt", "")]
    return sum(len(text.split()) for text in texts)


def streamed(first_s: float = 0.0, gap_s: float = 0.0) -> Script:
    """A role, then `max_tokens` chunks of one token each, then usage: 1 token for each word and 5 for the template."""

    def script(path: str, body: dict[str, Any]) -> Iterator[Piece]:
        tokens = body["max_tokens"]
        token = chunk(delta(content=" word") if "messages" in body else text(" word"))
        yield STREAM_HEAD + (chunk(delta(role="assistant", content="")) if "messages" in body else b"")
        yield first_s
        for k in range(tokens):
            if k and gap_s:
                yield gap_s
            yield token
        yield chunk(finish(words_of(body) + 5, tokens)) + END

    return script


class FakeServer:
    """`async with FakeServer(script) as server: server.url`. Keeps the bodies of all requests to generate."""

    def __init__(
        self, script: Script, *, model: str = MODEL, api_key: str | None = None, tokenizes: bool = False
    ) -> None:
        self.script = script
        self.model = model
        self.api_key = api_key
        self.tokenizes = tokenizes
        self.bodies: list[dict[str, Any]] = []
        self.num_aborted = 0
        self.url = ""

    async def __aenter__(self) -> FakeServer:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Peer(self), "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    def answer(self, path: str, key: str, body: bytes) -> Iterator[Piece]:
        if self.api_key is not None and key != f"Bearer {self.api_key}":
            return iter([plain(401, {"error": {"message": "no such key"}})])
        if path == "/v1/models":
            return iter([plain(200, {"object": "list", "data": [{"id": self.model}]})])
        if path == "/tokenize" and self.tokenizes:
            return iter([plain(200, {"count": 2 * words_of(json.loads(body)) + 7})])
        if not path.endswith("/completions"):
            return iter([plain(404, {"error": {"message": "no such route"}})])
        decoded = msgspec.json.decode(body)
        self.bodies.append(decoded)
        return self.script(path, decoded)


class _Peer(asyncio.Protocol):
    def __init__(self, server: FakeServer) -> None:
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._task is not None and not self._task.done():
            self._server.num_aborted += 1
            self._task.cancel()

    def on_message_begin(self) -> None:
        self._path, self._key, self._body = b"", b"", b""

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"authorization":
            self._key = value

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        pieces = self._server.answer(self._path.decode(), self._key.decode(), self._body)
        self._write(pieces)

    def _write(self, pieces: Iterator[Piece]) -> None:
        """Without pauses in one go; the first pause hands the rest to a task."""
        out = []
        for piece in pieces:
            if isinstance(piece, bytes):
                out.append(piece)
            elif piece is None:
                self._transport.write(b"".join(out))
                self._transport.close()
                return
            elif piece > 0:
                self._transport.write(b"".join(out))
                self._task = asyncio.ensure_future(self._after(piece, pieces))
                return
        self._transport.write(b"".join(out))

    async def _after(self, pause_s: float, pieces: Iterator[Piece]) -> None:
        await asyncio.sleep(pause_s)
        for piece in pieces:
            if isinstance(piece, bytes):
                self._transport.write(piece)
            elif piece is None:
                self._transport.close()
            else:
                await asyncio.sleep(piece)
