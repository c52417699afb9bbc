"""One connection to an endpoint: writes a request, parses what comes back, tells the listener, one at a time.

Plain asyncio protocol and a C parser, no tasks and no buffers between: at thousands of requests a second the load
generator's own time must not show in what it measures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

import httptools


class Listener(Protocol):
    """Who is told of an answer. `ended` comes once, last; None: the answer is whole."""

    def head(self, status: int) -> None: ...

    def data(self, data: bytes) -> None: ...

    def ended(self, problem: str | None, *, is_stale: bool = False) -> None: ...


class Connection(asyncio.Protocol):
    """Owned by the client's pool while idle, by its exchange while busy."""

    def __init__(self, on_idle: Callable[[Connection], None], on_lost: Callable[[Connection], None]) -> None:
        self._on_idle = on_idle
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._listener: Listener | None = None
        self._has_begun = False
        self._is_used = False

    @property
    def is_usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def begin(self, request: bytes, listener: Listener) -> None:
        assert self._listener is None, "one exchange at a time"
        assert self._transport is not None, "connected before it is used"
        self._listener = listener
        self._has_begun = False
        self._transport.write(request)

    def abort(self) -> None:
        """The exchange is of no more interest; nobody is told."""
        self._listener = None
        if self._transport is not None:
            self._transport.abort()

    # asyncio's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._has_begun = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"the answer is not HTTP ({error})")

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._on_lost(self)
        if self._listener is None:
            return
        if self._ends_by_closing():
            self._finish(None)
        elif self._has_begun:
            self._finish("the connection was closed in the middle of the answer")
        else:
            self._finish("the connection was closed before any answer", is_stale=self._is_used)

    def _ends_by_closing(self) -> bool:
        """An answer without length or chunks ends with its connection. The parser knows it by the keep-alive rule."""
        return self._has_begun and self._is_open_ended

    # httptools' side: called within `feed_data`.

    _is_open_ended = False
    _has_length = False

    def on_message_begin(self) -> None:
        self._has_length = self._is_open_ended = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._has_length = True

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200 and self._listener is not None:
            self._is_open_ended = not self._has_length
            self._listener.head(status)

    def on_body(self, body: bytes) -> None:
        if self._listener is not None:
            self._listener.data(body)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < 200:
            return
        self._is_used = True
        listener, self._listener = self._listener, None
        if self._parser.should_keep_alive():
            self._on_idle(self)
        elif self._transport is not None:
            self._transport.close()
        if listener is not None:
            listener.ended(None)

    def _fail(self, problem: str) -> None:
        listener = self._listener
        self.abort()
        if listener is not None:
            listener.ended(problem)

    def _finish(self, problem: str | None, *, is_stale: bool = False) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.ended(problem, is_stale=is_stale)
