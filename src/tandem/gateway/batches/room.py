"""How many lines run at once: as many as the engines take, found out by trying, as TCP finds out a network's room.

The number doubles until something says "full", falls to half then, and from there rises by one each time that all of
them have been answered. What was refused goes again before anything new.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from tandem.core.clock import Clock, SystemClock

START: Final = 8
MAX_PAUSE_S: Final = 60.0
_STILL_FULL_S: Final = 1.0
"""Refusals that come together are one: they were all sent before the first was heard."""


class Room:
    """Seats for all lines of all batches of this process. On the event loop only."""

    def __init__(self, most: int, clock: Clock | None = None) -> None:
        self._most = most
        self._clock = clock or SystemClock()
        self._size = float(min(START, most))
        self._was_full = False
        self._shrunk_s = float("-inf")
        self._closed_until_s = float("-inf")
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.in_flight = 0

    @property
    def size(self) -> int:
        """Seats there are now."""
        return int(self._size)

    @asynccontextmanager
    async def seat(self, *, again: bool = False) -> AsyncIterator[None]:
        """Waits for a seat, first come first served; `again`: before those who come for the first time."""
        await self._wait(again)
        try:
            yield
        finally:
            self.in_flight -= 1
            self._seat_waiting()

    def answered(self) -> None:
        """A line was taken and answered."""
        if self.in_flight >= self.size - 1:  # Else it isn't known whether more would have fitted.
            self._size = min(self._most, self._size + (1 / self._size if self._was_full else 1.0))
            self._seat_waiting()

    def full(self, retry_after_s: float) -> None:
        """A line was refused for want of room: nobody gets a seat until then."""
        now_s = self._clock.now()
        self._was_full = True
        if now_s - self._shrunk_s >= _STILL_FULL_S:
            self._size, self._shrunk_s = max(1.0, self._size / 2), now_s
        until_s = now_s + min(retry_after_s, MAX_PAUSE_S)
        if until_s > self._closed_until_s:
            self._closed_until_s = until_s
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(until_s - now_s, self._seat_waiting)

    async def _wait(self, again: bool) -> None:
        if not self._waiting and self._has_seat():
            self.in_flight += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.insert(0 if again else len(self._waiting), turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.in_flight -= 1  # The seat came in the same moment.
                self._seat_waiting()
            elif turn in self._waiting:
                self._waiting.remove(turn)
            raise

    def _seat_waiting(self) -> None:
        while self._waiting and self._has_seat():
            turn = self._waiting.popleft()
            if not turn.done():
                self.in_flight += 1
                turn.set_result(None)

    def _has_seat(self) -> bool:
        return self.in_flight < self.size and self._clock.now() >= self._closed_until_s - 0.001
