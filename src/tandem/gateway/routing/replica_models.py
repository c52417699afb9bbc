"""What the gateway has learnt about each replica: step times, systematic errors of predictions, cache hits.

Bounded: a replica that is not asked about any more is forgotten when `MAX_REPLICAS` others were.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tandem.core.types import ServiceClass
from tandem.gateway.context import RequestContext
from tandem.gateway.replicas.replica import Replica, Signals
from tandem.gateway.routing.facts import DEFAULT_CONCURRENCY, PoolFacts, facts_of_pool
from tandem.perfmodel.priors import PRIORS
from tandem.perfmodel.recent_steps import Step, new_steps
from tandem.perfmodel.step_time import StepTimeModel

MAX_REPLICAS: Final = 4096
_SMOOTHING: Final = 0.1
_BIAS_SMOOTHING: Final = 0.02
_BIAS_LIMIT: Final = 2.0
_RATE_S: Final = 4.0
"""About as long as answers take: what has come in this time is what will come while the next one is written."""
_MOST_PREFILL: Final = 0.9


@dataclass(slots=True)
class Bias:
    """Measured over predicted, smoothed: what the model gets wrong in the same direction again and again.

    One for all replicas of a pool: it is the load's doing, not a replica's, whose speed its own step times tell. A bias
    of each replica would swing: one that looks slow is avoided, and then nothing corrects the look.
    """

    ttft: float = 1.0
    tpot: float = 1.0

    def learn(self, name: str, measured: float, predicted: float) -> None:
        """`predicted` had the present bias in it. Bounded, so that one bad hour doesn't shut a replica out for ever."""
        before = getattr(self, name)
        ratio = min(_BIAS_LIMIT, max(1 / _BIAS_LIMIT, measured / predicted))
        after = before * ratio**_BIAS_SMOOTHING
        setattr(self, name, min(_BIAS_LIMIT, max(1 / _BIAS_LIMIT, after)))


@dataclass(slots=True)
class Known:
    """Of one replica."""

    pool_name: str
    facts: PoolFacts
    steps: StepTimeModel
    bias: dict[ServiceClass, Bias]
    uncached_share: float = 1.0
    """Of prompt tokens sent here: how many had to be computed, smoothed."""
    mean_output_tokens: float = 200.0
    """Of requests sent here, as expected when they were sent; smoothed."""
    tells_steps: bool = False
    tokens_since_scrape: int = 0
    """Prompt and output tokens sent since the engine last said how full its KV memory is."""
    _prompt_tokens: float = 0.0
    """Uncached prompt tokens sent lately, those of `_RATE_S` ago counting a third."""
    _prompt_tokens_s: float = 0.0
    seats: float = float("inf")
    """Sequences that the engine runs at once, where it says so."""
    kv_tokens: int = 0
    """That its KV memory holds, where it says so."""
    others: int = 0
    """Requests in the engine that this gateway hasn't sent, at the last scrape: other gateways', or direct ones."""
    _scraped: Signals | None = None
    _last_steps: tuple[Step, ...] = ()

    def take_signals(self, replica: Replica) -> None:
        """Learn from the newest scrape, once."""
        signals = replica.signals
        if signals is self._scraped or signals is None:
            return
        self._scraped = signals
        self.tokens_since_scrape = 0
        self.seats = float("inf") if signals.max_num_seqs is None else max(1, signals.max_num_seqs)
        self.kv_tokens = (signals.blocks_total or 0) * (signals.block_size or 0)
        self.others = _others(replica, signals)
        if signals.steps:
            self.tells_steps = True
            for step_s, num_tokens, num_seqs in new_steps(self._last_steps, signals.steps):
                self.steps.observe_step(step_s, num_tokens, num_seqs)
            self._last_steps = tuple(signals.steps[-2:])

    def sent(self, request: RequestContext, hit_tokens: int) -> None:
        """`hit_tokens`: of its prompt, expected in the replica's cache."""
        uncached = max(1, request.prompt_tokens - hit_tokens)
        share = uncached / max(1, request.prompt_tokens)
        self.uncached_share += _SMOOTHING * (share - self.uncached_share)
        self.mean_output_tokens += _SMOOTHING * (request.output_tokens - self.mean_output_tokens)
        self.tokens_since_scrape += uncached + request.output_tokens
        now_s = max(request.arrived_s, self._prompt_tokens_s)
        self._prompt_tokens = self._prompt_tokens * self._decay(now_s) + uncached
        self._prompt_tokens_s = now_s

    def prefill_share(self, now_s: float) -> float:
        """Of the engine's time, as much as prompts have taken of it lately: answers stand still meanwhile."""
        if not self._prompt_tokens:
            return 0.0
        rate = self._prompt_tokens * self._decay(now_s) / _RATE_S
        return min(_MOST_PREFILL, rate * self.steps.coefficients[1])

    def _decay(self, now_s: float) -> float:
        return math.exp(-max(0.0, now_s - self._prompt_tokens_s) / _RATE_S)


class ReplicaModels:
    """replica → what is known of it."""

    def __init__(self, facts: Mapping[str, PoolFacts] | None = None) -> None:
        """`facts`: pool name → its facts; of pools left out, what the pool itself tells."""
        self._facts = dict(facts or {})
        self._biases: dict[str, dict[ServiceClass, Bias]] = {}
        self._known: OrderedDict[str, Known] = OrderedDict()

    def of(self, replica: Replica) -> Known:
        """Up to date with the replica's newest signals."""
        known = self._known.get(replica.id)
        if known is None:
            known = self._add(replica)
        if known._scraped is not replica.signals:
            known.take_signals(replica)
        return known

    def forget(self, replica_id: str) -> None:
        """The engine is another now: restarted with a new model, or gone."""
        self._known.pop(replica_id, None)

    def set_facts(self, facts: Mapping[str, PoolFacts]) -> None:
        """After a reload of the configuration; what was learnt stays."""
        self._facts = dict(facts)
        for known in self._known.values():
            known.facts = self._facts.get(known.pool_name, known.facts)

    def _add(self, replica: Replica) -> Known:
        facts = self._facts.get(replica.pool.name) or facts_of_pool(replica.pool)
        known = Known(replica.pool.name, facts, StepTimeModel(PRIORS[facts.device]), self._bias_of(replica.pool.name))
        self._known[replica.id] = known
        if len(self._known) > MAX_REPLICAS:
            self._known.popitem(last=False)
        return known

    def _bias_of(self, pool: str) -> dict[ServiceClass, Bias]:
        if len(self._biases) > MAX_REPLICAS:
            self._biases.clear()
        return self._biases.setdefault(pool, {"interactive": Bias(), "batch": Bias()})


def capacity(replica: Replica, facts: PoolFacts) -> int:
    """Requests that it is given at once: a few more than it seats, so that a freed seat is taken without delay."""
    if facts.max_concurrency is not None:
        return facts.max_concurrency
    signals = replica.signals
    if signals is not None and signals.max_num_seqs is not None:
        return max(1, int(signals.max_num_seqs * 1.25))
    return DEFAULT_CONCURRENCY


def _others(replica: Replica, signals: Signals) -> int:
    """Never negative: what we sent after the engine counted isn't in its figures yet."""
    if replica.in_flight_when_scraped is None:
        return 0
    return max(0, (signals.running or 0) + (signals.waiting or 0) - replica.in_flight_when_scraped)
