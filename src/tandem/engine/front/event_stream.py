"""One answer as server-sent events. Nothing is sent until the first event, so an early failure is a real HTTP error.

A slow reader: aiohttp hands bytes to the transport at once, and waits only while more than 64 KiB of this connection
are unsent. Meanwhile the engine's outputs for this request collect in its own queue, which `max_tokens` bounds; no
other request waits, and no token is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from aiohttp import web

from tandem.core.errors import EngineFailed, TandemError
from tandem.protocol import sse
from tandem.protocol.errors import encode_error

_log = logging.getLogger(__name__)


class EventStream:
    """Headers with the first event; then events; then `end` or `fail`."""

    def __init__(self, request: web.Request, headers: Mapping[str, str]) -> None:
        self._request = request
        self.response = web.StreamResponse(headers={**sse.HEADERS, **headers})
        self._is_started = False
        self._starting = asyncio.Lock()

    @property
    def is_started(self) -> bool:
        """From here on an error can only be an event."""
        return self._is_started

    async def send(self, event: bytes) -> None:
        """Whole framed events. Returns at once unless this client is far behind."""
        if not self._is_started:
            await self._start()
        await self.response.write(event)

    async def end(self, last: bytes = b"") -> None:
        await self.send(last + sse.DONE)
        await self.response.write_eof()

    async def fail(self, error: Exception) -> None:
        """The error as the last event, and no `[DONE]`: the answer is not whole."""
        if not isinstance(error, TandemError):
            _log.error("a stream failed", exc_info=error)
            error = EngineFailed("The server failed while it answered.")
        await self.send(sse.encode_event(encode_error(error)))
        await self.response.write_eof()

    async def _start(self) -> None:
        async with self._starting:  # several prompts' first tokens may come at once
            if not self._is_started:
                await self.response.prepare(self._request)
                self._is_started = True
