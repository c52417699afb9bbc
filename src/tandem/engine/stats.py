"""What the engine knows about itself: gauges, counters, and each request's share of the engine's time."""

from __future__ import annotations

from collections.abc import Iterable

from tandem.core.request import Request, RequestStatus
from tandem.engine.messages import EngineStats
from tandem.engine.models.spec import ModelSpec
from tandem.engine.scheduler import Scheduler, StepPlan


class StatsKeeper:
    """Accounts every step, and reports when asked."""

    def __init__(self, scheduler: Scheduler, spec: ModelSpec) -> None:
        self._scheduler = scheduler
        self._half_length = _attention_half_length(spec)
        self._num_steps = 0
        self._busy_s = 0.0
        self._last = (0.0, 0, 0)
        self._held_since_s: float | None = None

    def account(self, plan: StepPlan, started_s: float, ended_s: float) -> None:
        """Share a step's time among its requests by predicted work, so that all shares add up to the busy time."""
        step_s = ended_s - started_s
        works = [self._work(s.start, s.num_tokens) for s in plan.scheduled]
        scale = step_s / sum(works)
        for scheduled, work in zip(plan.scheduled, works, strict=True):
            scheduled.request.engine_s += work * scale
        self._account_blocks(started_s, ended_s)
        self._num_steps += 1
        self._busy_s += step_s
        self._last = (step_s, plan.num_tokens, len(plan.scheduled))

    def _work(self, start: int, num_tokens: int) -> float:
        """Tokens, each weighted by the attention over the tokens before it."""
        return num_tokens * (1.0 + (start + 0.5 * num_tokens) / self._half_length)

    def _account_blocks(self, started_s: float, ended_s: float) -> None:
        """Block-seconds of KV: what each seated request holds, times the time since the step before."""
        since = started_s if self._held_since_s is None else min(self._held_since_s, started_s)
        for request in self._scheduler.running:
            request.kv_block_s += self._scheduler.kv.num_held_blocks(request) * (ended_s - since)
        self._held_since_s = ended_s

    def report(self, now_s: float) -> EngineStats:
        scheduler, pool, counters = self._scheduler, self._scheduler.kv.pool, self._scheduler.counters
        running = scheduler.running
        if not running:
            self._held_since_s = None
        return EngineStats(
            time_s=now_s,
            num_running=_by_class(running),
            num_waiting=_by_class(scheduler.waiting),
            num_queued_prompt_tokens=sum(
                r.num_uncomputed_tokens for r in (*running, *scheduler.waiting) if r.num_uncomputed_tokens > 1
            ),
            num_blocks=pool.num_blocks,
            num_free_blocks=pool.num_free,
            num_cached_blocks=pool.num_cached,
            num_held_blocks=pool.num_held,
            num_allocated_slots=pool.num_held * scheduler.kv.block_size,
            num_empty_slots=sum(scheduler.kv.num_empty_slots(r) for r in running),
            prefix_queries=counters.prefix_queries,
            prefix_hits=counters.prefix_hits,
            num_preemptions=counters.num_preemptions,
            num_recomputed_tokens=counters.num_recomputed_tokens,
            num_steps=self._num_steps,
            num_wasted_tokens=counters.num_wasted_tokens,
            last_step_s=self._last[0],
            last_step_tokens=self._last[1],
            last_step_seqs=self._last[2],
            busy_s=self._busy_s,
        )


def _by_class(requests: Iterable[Request]) -> dict[str, int]:
    counts = {"interactive": 0, "batch": 0}
    for request in requests:
        counts[request.service_class] += request.num_seats if request.status is RequestStatus.RUNNING else 1
    return counts


def _attention_half_length(spec: ModelSpec) -> float:
    """Context length at which a token's attention costs as many operations as its matrix products."""
    products = 2.0 * (spec.num_parameters - spec.vocab_size * spec.hidden_size)
    attention_per_token = 4.0 * spec.num_layers * spec.num_heads * spec.head_dim
    return max(1.0, products / attention_per_token)
