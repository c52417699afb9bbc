"""Sees silence. One sweep over all open requests now and then, instead of a timer for each: nothing to set or reset
when a chunk passes. `sweep` is plain, so tests call it with a clock of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from tandem.config.gateway_upstream import UpstreamConfig
from tandem.core.clock import Clock
from tandem.gateway.exchange import Exchange

_MAX_PERIOD_S: Final = 1.0


class Watch:
    """`run` is started once, and cancelled at the end."""

    def __init__(self, clock: Clock, config: UpstreamConfig) -> None:
        self._clock = clock
        self._open: set[Exchange] = set()
        self._idle: asyncio.Event | None = None
        self.reconfigure(config)

    def reconfigure(self, config: UpstreamConfig) -> None:
        """How often to look: a few times within the shortest limit."""
        shortest_s = min(
            config.first_token_timeout_s, config.plain_timeout_s, config.idle_timeout_s, config.ping_after_s,
            config.ping_every_s, config.client_stall_timeout_s,
        )  # fmt: skip
        self.period_s = min(_MAX_PERIOD_S, shortest_s / 4)

    def add(self, exchange: Exchange) -> None:
        self._open.add(exchange)

    def remove(self, exchange: Exchange) -> None:
        self._open.discard(exchange)
        if not self._open and self._idle is not None:
            self._idle.set()

    @property
    def num_open(self) -> int:
        return len(self._open)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.period_s)
            self.sweep()

    def sweep(self) -> None:
        now_s = self._clock.now()
        for exchange in list(self._open):
            for attempt in list(exchange.attempts):
                attempt.check(now_s)
            if exchange.pings is not None:
                exchange.pings.check(now_s)

    async def all_gone(self, timeout_s: float) -> bool:
        """Whether every open request ended within the time."""
        self._idle = asyncio.Event()
        if self._open:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), timeout_s)
        return not self._open
