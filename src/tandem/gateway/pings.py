"""Comment pings while a stream's first token takes long: proxies on the way would close a quiet connection.

The first ping brings the headers with it, so from then on an error can only be an event of the stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Mapping

from tandem.config.gateway_upstream import UpstreamConfig
from tandem.gateway.exchange import ClientStream
from tandem.protocol import sse

_PING = sse.encode_comment("ping")


class Pings:
    """One request's. `client` is None for a plain answer, which can't be pinged."""

    __slots__ = ("_client", "_config", "_due_s", "_headers", "_starting")

    def __init__(
        self, client: ClientStream | None, arrived_s: float, config: UpstreamConfig,
        headers: Callable[[], Mapping[str, str]],
    ) -> None:  # fmt: skip
        self._client = client
        self._config = config
        self._due_s = arrived_s + config.ping_after_s
        self._headers = headers
        self._starting: asyncio.Task[None] | None = None

    def check(self, now_s: float) -> None:
        if self._client is None or now_s < self._due_s:
            return
        self._due_s = now_s + self._config.ping_every_s
        if self._client.is_started:
            self._client.write(_PING)
        elif self._starting is None:
            self._starting = asyncio.ensure_future(self._start(self._client))

    async def stop(self) -> bool:
        """No more pings. Whether headers are out. May be called again."""
        self._due_s = math.inf
        if self._starting is not None:
            with contextlib.suppress(ConnectionError):
                await self._starting
        return self._client is not None and self._client.is_started

    async def _start(self, client: ClientStream) -> None:
        await client.start({**sse.HEADERS, **self._headers()})
        client.write(_PING)
