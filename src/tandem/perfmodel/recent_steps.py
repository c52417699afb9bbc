"""Which of an engine's reported steps are new: every report repeats the last ones of the report before it."""

from __future__ import annotations

from collections.abc import Sequence

Step = tuple[float, int, int]
"""(seconds, tokens, sequences)."""


def new_steps(before: Sequence[Step], now: Sequence[Step]) -> Sequence[Step]:
    """Those of `now` that come after the last of `before`. Both oldest first.

    A step's time has a dozen digits, so its last two steps tell where a report ended; should the same two come twice,
    the later place counts, and a step is left out rather than learnt twice.
    """
    if not before:
        return now
    tail = tuple(before[-2:])
    for end in range(len(now), 0, -1):
        if tuple(now[max(0, end - len(tail)) : end]) == tail[-end:]:
            return now[end:]
    return now
