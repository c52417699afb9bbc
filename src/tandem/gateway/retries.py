"""The budget of extra attempts: a fleet in trouble must not be asked for more because it is in trouble."""

from __future__ import annotations


class RetryBudget:
    """Each request that arrives earns `ratio` of an extra attempt; at most `burst` are saved up. Full at start."""

    def __init__(self, ratio: float, burst: int) -> None:
        self._ratio = ratio
        self._burst = float(burst)
        self._saved = float(burst)

    def earn(self) -> None:
        self._saved = min(self._burst, self._saved + self._ratio)

    def spend(self) -> bool:
        """Whether one more attempt may be made; if so, it is paid for."""
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        return True
