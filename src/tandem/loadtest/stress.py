"""A stress test: find the knee, hold it, go beyond it, come back, and then soak. Ends in a list of checks.

rate        ┌───────┐ beyond
            │       │
    ┌───────┘       │            the soak, if asked for:
····┘ the knee      └────────    ─────────────────────────
 ↑ found by search    back        a share of the knee, long
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

import msgspec

from tandem.loadtest import phases
from tandem.loadtest.bench import Run, Target, Watch, measure_once, unwatched
from tandem.loadtest.errors import LoadTestError
from tandem.loadtest.goals import Goals
from tandem.loadtest.memory import Probe
from tandem.loadtest.phases import Check, Growth, Phase
from tandem.loadtest.runner import Load
from tandem.loadtest.saturation import Knee
from tandem.loadtest.sender import Sender
from tandem.loadtest.settings import LoadSettings
from tandem.loadtest.stress_settings import StressSettings
from tandem.loadtest.sweep import sweep_rates
from tandem.loadtest.workload import make_conversations
from tandem.traffic import arrivals
from tandem.traffic.arrivals import Step
from tandem.traffic.text import TextMaker

PHASES: Final = ("at the knee", "beyond the knee", "back")
_MEMORY_SAMPLES: Final = 400


class StressResult(msgspec.Struct, kw_only=True):
    """Filled in as far as the test came."""

    knee: Knee
    steps: list[Run]
    run: Run | None = None
    phases: list[Phase] = []
    recovery_s: float | None = None
    soak: Run | None = None
    memory: Growth | None = None
    checks: list[Check] = []
    is_partial: bool = False


async def stress(
    target: Target,
    load: LoadSettings,
    settings: StressSettings,
    goals: Goals,
    *,
    probe: Probe | None = None,
    knee_rate: float | None = None,
    stop: asyncio.Event | None = None,
    watch: Watch = unwatched,
) -> StressResult:
    """`knee_rate`: already known, and not sought. Raises `LoadTestError` where no load at all meets the goals."""
    load = msgspec.structs.replace(load, rate=None, concurrency=None, num_requests=None, duration=settings.step)
    if knee_rate is None:
        steps, knee = await sweep_rates(target, load, None, goals, stop=stop, watch=watch)
    else:
        steps, knee = [], Knee(rate=knee_rate, broke_at=None)
    result = StressResult(knee=knee, steps=steps, is_partial=any(step.is_partial for step in steps))
    if result.is_partial:
        return result
    if knee.rate == 0.0:
        raise LoadTestError(f"the goals are not met at any load: {knee.why} at {knee.broke_at:.3g} requests/s.")
    await _past_the_knee(target, load, settings, goals, result, stop, watch)
    if settings.soak and not result.is_partial:
        await _soak(target, load, settings, result, probe, stop, watch)
    return result


def make_plan(knee_rate: float, settings: StressSettings) -> list[Step]:
    """In the order of `PHASES`, without a pause between: what the overload leaves behind is part of the test."""
    return [
        Step(knee_rate, settings.hold),
        Step(knee_rate * settings.beyond, settings.overload),
        Step(knee_rate * settings.back, settings.recover),
    ]


async def _past_the_knee(
    target: Target,
    load: LoadSettings,
    settings: StressSettings,
    goals: Goals,
    result: StressResult,
    stop: asyncio.Event | None,
    watch: Watch,
) -> None:
    plan = make_plan(result.knee.rate, settings)
    run = await _run_plan(target, load, plan, 777, stop, watch)
    result.run, result.is_partial = run, run.is_partial
    result.phases = phases.split(run.records, PHASES, plan, goals)
    result.recovery_s = phases.recovery_s(run.records, settings.hold + settings.overload, goals)
    at_knee, beyond, _ = result.phases
    result.checks += [
        phases.check_knee(at_knee),
        phases.check_collapse(at_knee, beyond, settings.min_goodput_kept),
        phases.check_recovery(result.recovery_s, settings.max_recovery),
    ]


async def _soak(
    target: Target,
    load: LoadSettings,
    settings: StressSettings,
    result: StressResult,
    probe: Probe | None,
    stop: asyncio.Event | None,
    watch: Watch,
) -> None:
    samples: list[tuple[float, float]] = []
    watched = watch if probe is None else _sampling(watch, probe, settings.soak / _MEMORY_SAMPLES, samples)
    plan = [Step(result.knee.rate * settings.soak_at, settings.soak)]
    run = await _run_plan(target, load, plan, 888, stop, watched)
    result.soak, result.is_partial = run, run.is_partial
    result.memory = phases.growth(samples)
    result.checks.append(phases.check_errors(run.records, load.max_error_rate))
    result.checks.append(phases.check_memory(result.memory, settings.max_memory_growth))


async def _run_plan(
    target: Target, load: LoadSettings, plan: list[Step], seed: int, stop: asyncio.Event | None, watch: Watch
) -> Run:
    duration_s = sum(step.duration_s for step in plan)
    changed = msgspec.structs.replace(load, duration=duration_s, rate=plan[0].rate, seed=load.seed + seed)
    offsets = arrivals.steps(plan, load.burstiness, changed.seed)
    text = TextMaker(changed.seed, target.ratio)
    made = Load(make_conversations(changed, text), offsets, duration_s=duration_s, drain_s=load.drain)
    return await measure_once(target, changed, stop=stop, watch=watch, load=made)


def _sampling(watch: Watch, probe: Probe, every_s: float, samples: list[tuple[float, float]]) -> Watch:
    """The given watch, and the server's memory beside it."""

    @contextlib.asynccontextmanager
    async def both(sender: Sender, load: Load) -> AsyncIterator[None]:
        async def sample() -> None:
            while True:
                size = await probe()
                if size is not None:
                    samples.append((sender.now(), size))
                await asyncio.sleep(max(0.05, every_s))

        task = asyncio.create_task(sample())
        try:
            async with watch(sender, load):
                yield
        finally:
            task.cancel()

    return both
