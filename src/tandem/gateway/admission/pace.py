"""How fast the waiting rooms empty, for an honest Retry-After."""

from __future__ import annotations

from typing import Final

_SMOOTHING: Final = 0.1
_UNKNOWN_S: Final = 1.0
"""Between two, before anything is known."""


class Pace:
    """Smoothed time between two requests that found a place after waiting."""

    def __init__(self) -> None:
        self._last_s: float | None = None
        self._between_s = _UNKNOWN_S

    def served(self, now_s: float) -> None:
        if self._last_s is not None:
            self._between_s += _SMOOTHING * (max(0.0, now_s - self._last_s) - self._between_s)
        self._last_s = now_s

    def time_for(self, count: int, now_s: float) -> float:
        """Until so many more have been served. A long silence counts: whatever served them has stopped."""
        silence_s = 0.0 if self._last_s is None else now_s - self._last_s
        return count * max(self._between_s, silence_s if silence_s > 10 * self._between_s else 0.0)
