"""How much of something was used in the last minute, and how much is promised to what still runs.

Not a bucket that fills up steadily: one that holds a minute's worth lets through twice that in an unlucky minute, once
from the bucket and once from what flows in. Here no 60 seconds ever hold more than the limit.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

WINDOW_S: Final = 60.0
SLOT_S: Final = 1.0
"""Use is summed by slots of a second, each counted until its last moment is a minute ago: 61 numbers a key at most."""


@dataclass(slots=True)
class Window:
    """Of one key and one kind. Times on a monotonic clock."""

    outstanding: int = 0
    """Promised to requests that haven't ended, however long ago they began."""
    used: int = 0
    """In the window."""
    _slots: deque[list[float]] = field(default_factory=deque)
    """[end of the slot, amount], oldest first."""

    def occupied(self, now_s: float) -> int:
        slots = self._slots
        while slots and slots[0][0] + WINDOW_S <= now_s:
            self.used -= int(slots.popleft()[1])
        return self.used + self.outstanding

    def use(self, amount: int, now_s: float) -> None:
        if amount <= 0:
            return
        end_s = (now_s // SLOT_S + 1) * SLOT_S
        if self._slots and self._slots[-1][0] >= end_s:
            self._slots[-1][1] += amount
        else:
            self._slots.append([end_s, amount])
        self.used += amount

    def wait_s(self, amount: int, limit: int, now_s: float) -> float:
        """Until `amount` fits if nothing more comes; what is outstanding is taken to be used up about now."""
        excess = self.occupied(now_s) + amount - limit
        for end_s, freed in self._slots:
            if excess <= 0:
                break
            excess -= int(freed)
            if excess <= 0:
                return max(0.0, end_s + WINDOW_S - now_s)
        return 1.0 if excess <= 0 else WINDOW_S
