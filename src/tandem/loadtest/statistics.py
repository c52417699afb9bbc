"""Exact percentiles and what they are worth: confidence intervals by a seeded bootstrap over blocks.

Requests that follow each other wait in the same queue, so their times are alike, and drawing them one by one would
promise too much. Whole runs of neighbours are drawn instead (a moving-block bootstrap, Künsch 1989).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import msgspec

Statistic = Callable[[list[float]], float]
"""Of values in ascending order."""
_MAX_DRAWS = 400_000


class Interval(msgspec.Struct, frozen=True):
    """95 %."""

    low: float
    high: float


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """One measured time over the requests that have it."""

    count: int
    mean: float
    median: float
    std: float
    p90: float
    p95: float
    p99: float
    min: float
    max: float
    mean_ci: Interval | None = None
    median_ci: Interval | None = None
    p99_ci: Interval | None = None


def percentile(ordered: Sequence[float], q: float) -> float:
    """`q` in 0…100 of ascending values, linear between neighbours, as numpy's default."""
    position = (len(ordered) - 1) * q / 100
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    # This form gives `ordered[low]` exactly where both neighbours are equal, infinity included.
    if ordered[low] == ordered[high] or position == low:
        return ordered[low]
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def median(ordered: Sequence[float]) -> float:
    return percentile(ordered, 50)


def p99(ordered: Sequence[float]) -> float:
    return percentile(ordered, 99)


def figures(values: Sequence[float], seed: int | None = 0) -> Figures | None:
    """`values` in the order of time. None for none; without a seed, no intervals."""
    if not values:
        return None
    ordered = sorted(values)
    average = mean(ordered)
    intervals = dict.fromkeys(("mean_ci", "median_ci", "p99_ci")) if seed is None else _intervals(values, seed)
    return Figures(
        count=len(ordered),
        mean=average,
        median=median(ordered),
        std=math.sqrt(math.fsum((v - average) ** 2 for v in ordered) / len(ordered)),
        p90=percentile(ordered, 90),
        p95=percentile(ordered, 95),
        p99=p99(ordered),
        min=ordered[0],
        max=ordered[-1],
        **intervals,
    )


def _intervals(values: Sequence[float], seed: int) -> dict[str, Interval | None]:
    if len(values) < 2:
        return {}
    drawn = bootstrap(values, (mean, median, p99), seed)
    names = ("mean_ci", "median_ci", "p99_ci")
    return {name: interval(found) for name, found in zip(names, drawn, strict=True)}


def bootstrap(values: Sequence[float], statistics: Sequence[Statistic], seed: int) -> list[list[float]]:
    """Each statistic over resamples of `values` (in the order of time)."""
    rng = random.Random(f"{seed} bootstrap")
    size = len(values)
    block = max(1, round(size ** (1 / 3)))
    rounds = max(100, min(1000, _MAX_DRAWS // size))
    found: list[list[float]] = [[] for _ in statistics]
    doubled = [*values, *values[:block]]  # a circle, so that the ends are drawn as often as the middle
    for _ in range(rounds):
        starts = [rng.randrange(size) for _ in range(-(-size // block))]
        sample = sorted([v for start in starts for v in doubled[start : start + block]][:size])
        for statistic, out in zip(statistics, found, strict=True):
            out.append(statistic(sample))
    return found


def interval(drawn: Sequence[float]) -> Interval:
    """The middle 95 % of what a bootstrap found."""
    ordered = sorted(drawn)
    return Interval(percentile(ordered, 2.5), percentile(ordered, 97.5))


def trend(times: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """Least squares: the rise from the first time to the last, and how many standard errors that is."""
    count = len(times)
    if count < 3:
        return 0.0, 0.0
    mid_t, mid_v = mean(times), mean(values)
    spread = math.fsum((t - mid_t) ** 2 for t in times)
    if spread == 0:
        return 0.0, 0.0
    slope = math.fsum((t - mid_t) * (v - mid_v) for t, v in zip(times, values, strict=True)) / spread
    rest = math.fsum((v - mid_v - slope * (t - mid_t)) ** 2 for t, v in zip(times, values, strict=True))
    error = math.sqrt(rest / (count - 2) / spread)
    rise = slope * (max(times) - min(times))
    return rise, slope / error if error > 0 else math.copysign(math.inf, slope) if slope else 0.0
