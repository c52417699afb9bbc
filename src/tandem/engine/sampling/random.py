"""Random numbers that depend on (seed, answer, position) and on nothing else, so never on the batch.

A counter-based generator: each number is a hash of its coordinates, so there is no state to carry, to preempt or to
resume. The mixer is SplitMix64's finaliser (Steele, Lea, Flood: "Fast splittable pseudorandom number generators",
OOPSLA 2014).
"""

from __future__ import annotations

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def _mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def uniform(seed: int, answer: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits. `answer` is which of the n, `position` counts its output tokens."""
    state = _mix((seed + _GOLDEN) & _MASK)
    state = _mix((state + (answer + 1) * _GOLDEN) & _MASK)
    state = _mix((state + (position + 1) * _GOLDEN) & _MASK)
    return (state >> 11) * 2.0**-53
