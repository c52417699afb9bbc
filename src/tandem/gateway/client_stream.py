"""The client's end of a stream over aiohttp. Headers go through aiohttp; chunks go straight to the transport.

aiohttp frames a stream in HTTP's chunks from its headers to its end, and we add chunks in between: the same bytes as
its own `write`, without its bookkeeping for each, which costs more than all the rest of passing a chunk on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Final

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import HttpVersion11

_STATUS_OK: Final = 200


class AiohttpStream:
    """`ClientStream` of one request."""

    __slots__ = ("_buffer_bytes", "_request", "_transport", "_writer", "is_chunked", "response")

    def __init__(self, request: web.Request, buffer_bytes: int) -> None:
        self._request = request
        self._buffer_bytes = buffer_bytes
        self._transport: asyncio.Transport | None = None
        self._writer: AbstractStreamWriter | None = None
        self.is_chunked = request.version >= HttpVersion11
        self.response: web.StreamResponse | None = None
        """What the handler returns once the stream is over."""

    @property
    def is_started(self) -> bool:
        return self.response is not None

    async def start(self, headers: Mapping[str, str]) -> None:
        response = web.StreamResponse(status=_STATUS_OK, headers=headers)
        self._writer = await response.prepare(self._request)
        if self._writer is not None:
            self._writer.send_headers()
        self.response = response
        transport = self._request.transport
        if transport is not None:
            transport.set_write_buffer_limits(high=self._buffer_bytes)
        self._transport = transport

    def write(self, data: bytes) -> bool:
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self.is_chunked else data)
        return transport.get_write_buffer_size() > self._buffer_bytes

    def write_framed(self, data: bytes) -> bool:
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        transport.write(data)
        return transport.get_write_buffer_size() > self._buffer_bytes

    async def drain(self) -> None:
        if self._writer is not None:
            with contextlib.suppress(ConnectionError):
                await self._writer.drain()

    async def end(self) -> None:
        if self.response is not None:
            with contextlib.suppress(ConnectionError):
                await self.response.write_eof()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
