"""Time, as a thing that can be replaced: the simulator and the tests advance it by hand."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds from an arbitrary start, never going back."""

    def now(self) -> float: ...


class SystemClock:
    """The machine's monotonic clock. On Linux it is shared by all processes, so spans may cross them."""

    def now(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that moves only when told to."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        assert seconds >= 0, f"a clock can't go back by {-seconds} s"
        self._now_s += seconds
