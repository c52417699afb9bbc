"""The time of day, for what people and files are told. Intervals are measured by `core.clock`.

A wall clock can jump: somebody sets it, or a machine wakes. A deadline of a day must not pass because of that in a
second, so this one goes on steadily from where it was, and follows the machine only if the jump lasts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from tandem.core.clock import Clock, SystemClock

SMALL_S: Final = 2.0
"""Differences up to this are ordinary corrections, and followed at once."""
PATIENCE_S: Final = 60.0
_log = logging.getLogger(__name__)


class WallClock:
    """Seconds since 1970."""

    def __init__(self, clock: Clock | None = None, read: Callable[[], float] = time.time) -> None:
        self._clock = clock or SystemClock()
        self._read = read
        self._offset_s = read() - self._clock.now()
        self._jumped_at_s: float | None = None

    def now(self) -> float:
        now_s = self._clock.now()
        offset_s = self._read() - now_s
        if abs(offset_s - self._offset_s) <= SMALL_S:
            self._offset_s, self._jumped_at_s = offset_s, None
        elif self._jumped_at_s is None:
            self._jumped_at_s = now_s
            _log.warning("the machine's clock has jumped by %.0f s", offset_s - self._offset_s)
        elif now_s - self._jumped_at_s >= PATIENCE_S:
            self._offset_s, self._jumped_at_s = offset_s, None
        return now_s + self._offset_s

    def now_us(self) -> int:
        return int(self.now() * 1_000_000)
