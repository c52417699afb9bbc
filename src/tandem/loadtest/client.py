"""Requests over kept connections, to one endpoint after the other in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from tandem.loadtest.connection import Connection, Listener
from tandem.loadtest.endpoint import Endpoint
from tandem.loadtest.errors import Unreachable

CONNECT_TIMEOUT_S = 10.0


class Exchange:
    """One request on its way. `done` is set when its listener has been told of the end."""

    __slots__ = ("connection", "done", "listener", "request")

    def __init__(self, request: bytes, listener: Listener, done: asyncio.Future[bool]) -> None:
        self.request = request
        self.listener = listener
        self.done = done
        """Its value: whether the connection proved stale, so that the request may be sent again."""
        self.connection: Connection | None = None

    def head(self, status: int) -> None:
        self.listener.head(status)

    def data(self, data: bytes) -> None:
        self.listener.data(data)

    def ended(self, problem: str | None, *, is_stale: bool = False) -> None:
        if not is_stale:
            self.listener.ended(problem)
        if not self.done.done():
            self.done.set_result(is_stale)


class Client:
    """Use it within one event loop; `close` ends all connections."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self.endpoints = list(endpoints)
        self._idle: list[list[Connection]] = [[] for _ in endpoints]
        self._open: set[Connection] = set()
        self._next = 0

    async def send(self, path: str, body: bytes, listener: Listener) -> None:
        """POST to the next endpoint; returns when the listener has been told of the end. Cancelling it hangs up."""
        index = self._next
        self._next = (index + 1) % len(self.endpoints)
        request = self.endpoints[index].head("POST", path, len(body)) + body
        while await self._try(index, request, listener):
            pass  # a kept connection that the server had closed: nothing was served, and it is sent again

    async def fetch(self, method: str, path: str, body: bytes = b"", endpoint: int = 0) -> tuple[int, bytes]:
        """A small answer as a whole. Raises `Unreachable`."""
        whole = _Whole()
        request = self.endpoints[endpoint].head(method, path, len(body)) + body
        while await self._try(endpoint, request, whole):
            pass
        if whole.problem is not None:
            raise Unreachable(f"{self.endpoints[endpoint].url}: {whole.problem}.")
        return whole.status, b"".join(whole.parts)

    def close(self) -> None:
        for connection in list(self._open):
            connection.abort()

    async def _try(self, index: int, request: bytes, listener: Listener) -> bool:
        exchange = Exchange(request, listener, asyncio.get_running_loop().create_future())
        try:
            connection = self._pooled(index) or await self._connect(index)
        except OSError as error:
            exchange.ended(_unreachable(error))
            return False
        except TimeoutError:
            exchange.ended(f"no connection within {CONNECT_TIMEOUT_S:.0f} s")
            return False
        connection.begin(request, exchange)
        try:
            return await exchange.done
        except asyncio.CancelledError:
            connection.abort()
            raise

    def _pooled(self, index: int) -> Connection | None:
        idle = self._idle[index]
        while idle:
            connection = idle.pop()
            if connection.is_usable:
                return connection
        return None

    async def _connect(self, index: int) -> Connection:
        make = partial(Connection, self._idle[index].append, self._open.discard)
        connection = await asyncio.wait_for(self.endpoints[index].connect(make), CONNECT_TIMEOUT_S)
        self._open.add(connection)
        return connection


class _Whole:
    def __init__(self) -> None:
        self.status = 0
        self.parts: list[bytes] = []
        self.problem: str | None = None

    def head(self, status: int) -> None:
        self.status = status

    def data(self, data: bytes) -> None:
        self.parts.append(data)

    def ended(self, problem: str | None, *, is_stale: bool = False) -> None:
        self.problem = problem


def _unreachable(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "nobody listens there (connection refused)"
    if isinstance(error, TimeoutError):
        return f"no connection within {CONNECT_TIMEOUT_S:.0f} s"
    return f"it can't be reached ({error.strerror or error})"
