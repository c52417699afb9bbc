"""When requests come: offsets in seconds from the start, seeded. Open loop: none of them waits for an answer.

The k-th offset depends on the process alone; how many are taken is the caller's affair.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple


class Step(NamedTuple):
    """A constant mean rate for a while."""

    rate: float
    """Requests per second."""
    duration_s: float


def constant(rate: float) -> Iterator[float]:
    """One every 1/rate seconds, the first at once."""
    return (k / rate for k in itertools.count())


def poisson(rate: float, seed: int) -> Iterator[float]:
    """Independent users: exponential gaps."""
    return gamma(rate, 1.0, seed)


def gamma(rate: float, burstiness: float, seed: int) -> Iterator[float]:
    """Gamma gaps with mean 1/rate and shape `burstiness`: 1 is Poisson, below it bursts, above it even spacing."""
    rng = random.Random(f"{seed} arrivals")
    at_s = 0.0
    while True:
        yield at_s
        at_s += rng.gammavariate(burstiness, 1 / (rate * burstiness))


def ramp(start_rate: float, end_rate: float, duration_s: float) -> Iterator[float]:
    """A rate that rises (or falls) evenly from one value to the other, and stays there.

    The k-th request comes when the integral of the rate has reached k.
    """
    slope = (end_rate - start_rate) / duration_s
    in_ramp = (start_rate + end_rate) / 2 * duration_s
    for k in itertools.count():
        if k >= in_ramp:
            yield duration_s + (k - in_ramp) / end_rate
        elif abs(slope) < 1e-12:
            yield k / start_rate
        else:
            yield ((start_rate**2 + 2 * slope * k) ** 0.5 - start_rate) / slope


def steps(plan: Sequence[Step], burstiness: float, seed: int) -> Iterator[float]:
    """One rate after the other without a pause; ends with the last. A step is cut off at its end, not drained."""
    start_s = 0.0
    for index, step in enumerate(plan):
        for at_s in until(gamma(step.rate, burstiness, seed + index), step.duration_s):
            yield start_s + at_s
        start_s += step.duration_s


def replay(recorded: Iterable[float], speed: float) -> Iterator[float]:
    """As recorded, `speed` times as fast."""
    return (at_s / speed for at_s in recorded)


def until(offsets: Iterable[float], duration_s: float | None) -> Iterator[float]:
    """Those before the end of a run."""
    return iter(offsets) if duration_s is None else itertools.takewhile(lambda at_s: at_s < duration_s, offsets)
