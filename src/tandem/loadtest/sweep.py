"""One run for each of several loads; or, without being told which, until the knee is found."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from tandem.loadtest.bench import Run, Target, Watch, measure_once, unwatched
from tandem.loadtest.errors import LoadTestError
from tandem.loadtest.goals import Goals
from tandem.loadtest.saturation import Knee, Verdict, find_knee, judge
from tandem.loadtest.settings import LoadSettings
from tandem.loadtest.statistics import mean

DEFAULT_STEP_S: Final = 20.0
_MAX_DOUBLINGS: Final = 14
_REFINEMENTS: Final = 2


class Search:
    """Which rate next: double until one breaks, then halve the gap (geometrically) a few times. Knows no endpoint."""

    def __init__(self, start: float, refinements: int = _REFINEMENTS, max_doublings: int = _MAX_DOUBLINGS) -> None:
        self.rates: list[float] = []
        self.verdicts: list[Verdict] = []
        self._next: float | None = start
        self._refinements = refinements
        self._doublings = max_doublings

    def __iter__(self) -> Iterator[float]:
        """After each rate comes its `tell`."""
        while self._next is not None:
            yield self._next

    def tell(self, rate: float, verdict: Verdict) -> None:
        self.rates.append(rate)
        self.verdicts.append(verdict)
        knee = find_knee(self.rates, self.verdicts)
        if knee.broke_at is None:
            self._doublings -= 1
            self._next = rate * 2 if self._doublings > 0 else None
        elif knee.rate == 0.0:
            self._doublings -= 1
            self._next = knee.broke_at / 2 if self._doublings > 0 else None
        elif self._refinements > 0:
            self._refinements -= 1
            self._next = (knee.rate * knee.broke_at) ** 0.5
        else:
            self._next = None

    @property
    def knee(self) -> Knee:
        return find_knee(self.rates, self.verdicts)


async def sweep_rates(
    target: Target,
    settings: LoadSettings,
    rates: Sequence[float] | None,
    goals: Goals,
    *,
    stop: asyncio.Event | None = None,
    watch: Watch = unwatched,
) -> tuple[list[Run], Knee]:
    """`rates` None: the search decides. A run that was stopped is the last, and has no say about the knee."""
    search = Search(await first_rate(target, settings) if rates is None else 1.0)
    runs: list[Run] = []
    for rate in search if rates is None else rates:
        run = await measure_once(target, step_settings(settings, rate, len(runs)), stop=stop, watch=watch)
        if run.records:
            runs.append(run)
        if run.is_partial:
            break
        search.tell(rate, judge(run.records, goals))
    return runs, search.knee


async def sweep_concurrency(
    target: Target,
    settings: LoadSettings,
    levels: Sequence[int],
    *,
    stop: asyncio.Event | None = None,
    watch: Watch = unwatched,
) -> list[Run]:
    runs: list[Run] = []
    for level in levels:
        changed = msgspec.structs.replace(
            _with_end(settings), concurrency=level, rate=None, seed=settings.seed + len(runs)
        )
        run = await measure_once(target, changed, stop=stop, watch=watch)
        if run.records:
            runs.append(run)
        if run.is_partial:
            break
    return runs


def step_settings(settings: LoadSettings, rate: float, index: int) -> LoadSettings:
    """Every step has prompts of its own, so that none finds the former's in the prefix cache."""
    return msgspec.structs.replace(_with_end(settings), rate=rate, concurrency=None, seed=settings.seed + index)


def _with_end(settings: LoadSettings) -> LoadSettings:
    if settings.duration is None and settings.num_requests is None:
        return msgspec.structs.replace(settings, duration=DEFAULT_STEP_S)
    return settings


async def first_rate(target: Target, settings: LoadSettings) -> float:
    """Half of what one request after the other comes to. Raises `LoadTestError` where none succeeds."""
    alone = msgspec.structs.replace(
        settings, num_requests=3, duration=None, rate=None, concurrency=1, seed=settings.seed + 999_983
    )
    run = await measure_once(target, alone)
    times = [record.e2el_s for record in run.records if record.is_ok]
    if not times:
        raise LoadTestError(f"not even a single request succeeds: {run.records[0].problem}.")
    return 0.5 / max(1e-3, mean(times))
