"""One running engine at an address, as the gateway sees it: what it said last, and what we have sent it since."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal

from tandem.core.types import ServiceClass

if TYPE_CHECKING:
    from tandem.gateway.replicas.base import Adapter
    from tandem.gateway.replicas.pool import Pool

ReplicaState = Literal["starting", "up", "draining", "down"]
DEFAULT_MAX_IN_FLIGHT: Final = 128
_SEATS_AHEAD: Final = 1.25
"""A quarter more than it seats, so that a freed seat is taken without delay."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Since the engine started. Differences between two scrapes are what is of use; None: this kind doesn't say."""

    ttft_sum_s: float | None = None
    ttft_count: float | None = None
    tpot_sum_s: float | None = None
    tpot_count: float | None = None
    queue_sum_s: float | None = None
    queue_count: float | None = None
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    preemptions: float | None = None
    prefix_queries: float | None = None
    """In tokens, as the hits."""
    prefix_hits: float | None = None


@dataclass(frozen=True, slots=True)
class Signals:
    """One set of figures for every kind of engine. None: this kind doesn't say."""

    taken_s: float
    """When, on the gateway's clock."""
    running: int | None = None
    waiting: int | None = None
    running_by_class: dict[ServiceClass, int] | None = None
    kv_usage: float | None = None
    """0..1."""
    queued_prompt_tokens: int | None = None
    """Uncached prompt tokens still to be computed."""
    block_size: int | None = None
    blocks_free: int | None = None
    blocks_total: int | None = None
    slots_allocated: int | None = None
    slots_empty: int | None = None
    max_num_seqs: int | None = None
    max_model_len: int | None = None
    heartbeat_age_s: float | None = None
    steps: tuple[tuple[float, int, int], ...] = ()
    """(seconds, tokens, sequences) of recent steps, where the engine tells."""
    ttft_s: float | None = None
    """Mean of those since the last scrape."""
    tpot_s: float | None = None
    queue_s: float | None = None
    prefix_hit_rate: float | None = None
    """0..1, in prompt tokens; since the last scrape where the engine gives totals."""
    totals: Totals = Totals()
    is_stale: bool = False
    """Too old to be believed: figures of load are gone, what doesn't change (sizes) stayed."""

    def stale(self) -> Signals:
        """What is left when nothing new came for too long."""
        return Signals(
            taken_s=self.taken_s, block_size=self.block_size, blocks_total=self.blocks_total,
            max_num_seqs=self.max_num_seqs, max_model_len=self.max_model_len, totals=self.totals, is_stale=True,
        )  # fmt: skip

    def since(self, before: Signals | None) -> Signals:
        """With the means of what happened between the two. An engine that restarted in between counts from zero."""
        if before is None:
            return self
        old, new = before.totals, self.totals
        return replace(
            self,
            ttft_s=_mean(old.ttft_sum_s, old.ttft_count, new.ttft_sum_s, new.ttft_count, self.ttft_s),
            tpot_s=_mean(old.tpot_sum_s, old.tpot_count, new.tpot_sum_s, new.tpot_count, self.tpot_s),
            queue_s=_mean(old.queue_sum_s, old.queue_count, new.queue_sum_s, new.queue_count, self.queue_s),
            prefix_hit_rate=_mean(
                old.prefix_hits, old.prefix_queries, new.prefix_hits, new.prefix_queries, self.prefix_hit_rate
            ),
        )


def _mean(
    old_sum: float | None, old_count: float | None, new_sum: float | None, new_count: float | None, told: float | None
) -> float | None:
    """Of the observations between two readings; `told`, what the engine itself says, if there were none or if it
    began anew."""
    if old_sum is None or old_count is None or new_sum is None or new_count is None:
        return told
    if new_count <= old_count or new_sum < old_sum:
        return told
    return (new_sum - old_sum) / (new_count - old_count)


@dataclass(slots=True, eq=False)
class Replica:
    """Counted when sent: `in_flight` moves the moment a request leaves, the scrape corrects what it can't know."""

    id: str
    """Stable and short: pool name and number, or pool name and host:port. In headers, metrics and the ledger."""
    pool: Pool
    adapter: Adapter
    url: str
    """http://host:port or unix:///path; no trailing slash."""
    state: ReplicaState = "starting"
    reason: str = ""
    """Why it isn't up, in words."""
    up_since_s: float = 0.0
    """Also begins anew after an ejection: slow start counts from here."""
    signals: Signals | None = None
    in_flight: int = 0
    in_flight_by_class: dict[ServiceClass, int] = field(default_factory=lambda: {"interactive": 0, "batch": 0})
    in_flight_prompt_tokens: int = 0
    """Of requests that have no first token yet."""
    in_flight_when_scraped: int | None = None
    """`in_flight` at the moment `signals` were taken: what the engine counts beyond it, others have sent."""
    ejected_until_s: float = 0.0
    """Circuit breaker or outlier ejection: not chosen before."""
    failures_in_row: int = 0
    trial_limit: int | None = None
    """While the circuit is half open: requests that it may have, those still running included."""
    last_answer_s: float | None = None
    """When a request of ours last got its first token here."""
    is_asleep: bool = False
    """Its weights are put away; a wake call comes before the next request."""

    def is_available(self, now_s: float) -> bool:
        return self.state == "up" and now_s >= self.ejected_until_s

    @property
    def max_in_flight(self) -> int:
        """How many requests it is given at once."""
        limit = self.pool.max_concurrency
        if limit is None:
            seats = None if self.signals is None else self.signals.max_num_seqs
            limit = DEFAULT_MAX_IN_FLIGHT if seats is None else max(1, int(seats * _SEATS_AHEAD))
        return limit if self.trial_limit is None else min(limit, self.trial_limit)
