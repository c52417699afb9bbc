"""What a stress run showed in each of its phases, and what follows: pure functions over records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from tandem.loadtest.goals import Goals, meets
from tandem.loadtest.record import Record
from tandem.loadtest.statistics import mean, median, trend
from tandem.traffic.arrivals import Step

_SETTLED_SHARE: Final = 0.9
"""Recovered from the moment on after which so many of the remaining requests meet the goals."""


class Phase(msgspec.Struct, kw_only=True):
    """One part of the run. Requests belong to the phase in which they were due, whenever they ended."""

    name: str
    rate: float
    duration_s: float
    total: int
    ok: int
    errors: int
    incomplete: int
    goodput: float
    goodput_share: float
    median_ttft_ms: float | None
    problems: dict[str, int]


class Check(msgspec.Struct, frozen=True):
    """One thing that the test wants to know."""

    name: str
    passed: bool
    detail: str


def split(records: Sequence[Record], names: Sequence[str], plan: Sequence[Step], goals: Goals) -> list[Phase]:
    """A phase in which nothing was due has zeros."""
    found, start_s = [], 0.0
    for name, step in zip(names, plan, strict=True):
        end_s = start_s + step.duration_s
        found.append(_phase(name, step, [r for r in records if start_s <= r.due_s < end_s], goals))
        start_s = end_s
    return found


def _phase(name: str, step: Step, records: Sequence[Record], goals: Goals) -> Phase:
    met = sum(meets(record, goals) for record in records)
    ttfts = sorted(r.ttft_s * 1000 for r in records if r.is_ok and r.ttft_s is not None)
    problems: dict[str, int] = {}
    for record in records:
        if record.problem:
            problems[record.problem] = problems.get(record.problem, 0) + 1
    return Phase(
        name=name,
        rate=step.rate,
        duration_s=step.duration_s,
        total=len(records),
        ok=sum(record.is_ok for record in records),
        errors=sum(record.status == "error" for record in records),
        incomplete=sum(record.status == "incomplete" for record in records),
        goodput=met / step.duration_s,
        goodput_share=met / len(records) if records else 0.0,
        median_ttft_ms=median(ttfts) if ttfts else None,
        problems=problems,
    )


def recovery_s(records: Sequence[Record], from_s: float, goals: Goals) -> float | None:
    """From the load's fall until requests meet the goals again and go on meeting them; None: never within the run."""
    after = sorted((record for record in records if record.due_s >= from_s), key=lambda record: record.due_s)
    met = [meets(record, goals) for record in after]
    for index, record in enumerate(after):
        rest = met[index:]
        if rest[0] and sum(rest) >= _SETTLED_SHARE * len(rest):
            return record.due_s - from_s if index else 0.0
    return None


def check_collapse(at_knee: Phase, beyond: Phase, floor: float) -> Check:
    """Past the knee goodput may not rise, but it must not fall far either: those who can be served must be."""
    kept = beyond.goodput / at_knee.goodput if at_knee.goodput else 0.0
    detail = f"goodput {at_knee.goodput:.2f} req/s at the knee, {beyond.goodput:.2f} beyond it: {kept:.0%} kept"
    return Check("no collapse beyond the knee", kept >= floor, f"{detail}, at least {floor:.0%} wanted")


def check_recovery(seconds: float | None, limit_s: float) -> Check:
    if seconds is None:
        return Check("recovery", False, "the goals were not met again after the load had fallen")
    return Check(
        "recovery", seconds <= limit_s, f"{seconds:.1f} s after the load had fallen, at most {limit_s:g} s wanted"
    )


def check_knee(at_knee: Phase) -> Check:
    share = f"{at_knee.goodput_share:.0%} of the requests within goals while the knee was held"
    return Check("the knee holds", at_knee.goodput_share >= 0.8, f"{share}, at least 80% wanted")


class Growth(msgspec.Struct, frozen=True):
    """Memory over a soak, its first quarter (caches fill) left out."""

    start_bytes: float
    end_bytes: float
    rise: float
    """Of the mean, over the rest of the soak, by a straight line."""
    is_significant: bool


def growth(samples: Sequence[tuple[float, float]]) -> Growth | None:
    """(second, bytes) → None for too few to say."""
    settled = list(samples[len(samples) // 4 :])
    if len(settled) < 8:
        return None
    times, sizes = [t for t, _ in settled], [size for _, size in settled]
    rise, errors = trend(times, sizes)
    return Growth(sizes[0], sizes[-1], rise / mean(sizes), errors > 4)


def check_memory(found: Growth | None, limit: float) -> Check:
    if found is None:
        return Check("memory", True, "not told: give --pid, or an endpoint with process_resident_memory_bytes")
    leaks = found.is_significant and found.rise > limit
    sizes = f"{found.start_bytes / 2**20:.0f} → {found.end_bytes / 2**20:.0f} MiB"
    return Check("memory", not leaks, f"{sizes}, a rise of {max(0.0, found.rise):.1%}, at most {limit:.0%} wanted")


def check_errors(records: Sequence[Record], limit: float) -> Check:
    failed = sum(record.status == "error" for record in records)
    share = failed / len(records) if records else 1.0
    return Check("errors in the soak", share <= limit, f"{failed} of {len(records)} failed, at most {limit:.1%} wanted")
