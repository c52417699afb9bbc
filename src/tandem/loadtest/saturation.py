"""Is an endpoint beyond what it can serve, and where between the measured rates does that begin (the knee)?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from tandem.loadtest.goals import HOLDING_SHARE, Goals, share_meeting
from tandem.loadtest.record import Record
from tandem.loadtest.statistics import mean, trend

_SIGNIFICANT: Final = 3.0
"""Standard errors."""
_RISE: Final = 0.5
"""Of the mean, over the run."""
_MIN_REQUESTS: Final = 10
_MAX_FAILING: Final = 1 - HOLDING_SHARE


class Verdict(msgspec.Struct, frozen=True):
    """Does the load hold? `why` says what broke; "" where nothing did."""

    holds: bool
    why: str = ""


class Knee(msgspec.Struct, frozen=True, kw_only=True):
    """The highest measured rate that held, below the lowest that broke."""

    rate: float
    """0 where none held."""
    broke_at: float | None
    """None where none broke: the knee lies higher."""
    why: str = ""


def judge(records: Sequence[Record], goals: Goals) -> Verdict:
    """Goals, where there are any, must be met by 90 % of all requests sent; without goals the queue must not grow."""
    failing = sum(record.status == "error" for record in records) / len(records)
    if failing > _MAX_FAILING:
        return Verdict(False, f"{failing:.0%} of the requests failed")
    if goals:
        share = share_meeting(records, goals)
        if share < HOLDING_SHARE:
            shown = " ".join(f"{name}:{bound:g}" for name, bound in goals.items())
            return Verdict(False, f"only {share:.0%} of the requests met {shown}")
        return Verdict(True)
    if is_over_saturated(records):
        return Verdict(False, "time to first token and concurrency both rose all through the run")
    return Verdict(True)


def is_over_saturated(records: Sequence[Record]) -> bool:
    """Both the time to first token and the number of open requests rise significantly over the run."""
    ordered = sorted(records, key=lambda record: record.sent_s)
    started = [record for record in ordered if record.ttft_s is not None]
    ttfts = [record.ttft_s or 0.0 for record in started]
    return _rises([record.sent_s for record in started], ttfts) and _rises(*_open_when_sent(ordered))


def _rises(times: Sequence[float], values: Sequence[float]) -> bool:
    if len(values) < _MIN_REQUESTS:
        return False
    rise, errors = trend(times, values)
    return rise > _RISE * mean(values) and errors > _SIGNIFICANT


def _open_when_sent(ordered: Sequence[Record]) -> tuple[list[float], list[float]]:
    ends = sorted(record.end_s for record in ordered)
    times, counts, ended = [], [], 0
    for index, record in enumerate(ordered):
        while ended < len(ends) and ends[ended] <= record.sent_s:
            ended += 1
        times.append(record.sent_s)
        counts.append(float(index + 1 - ended))
    return times, counts


def find_knee(rates: Sequence[float], verdicts: Sequence[Verdict]) -> Knee:
    """A rate that held above one that broke is luck, and doesn't count."""
    steps = sorted(zip(rates, verdicts, strict=True), key=lambda step: step[0])
    best = 0.0
    for rate, verdict in steps:
        if not verdict.holds:
            return Knee(rate=best, broke_at=rate, why=verdict.why)
        best = rate
    return Knee(rate=best, broke_at=None)
