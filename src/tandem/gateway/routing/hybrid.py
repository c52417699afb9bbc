"""The default policy: the cheapest replica that meets the request's goal; if none does, the nearest to it.

The goal is the service class's: first token and pace for interactive requests, a deadline for batch. What would happen
on each replica is predicted (`predict.py`), and its cost is the pool's price times the engine seconds that the request
takes there. Nothing here says "interactive goes to paged, bulk to compiled": it follows, for bulk has no short goal and
so goes where a token is cheapest, and a burst spills over to whatever still meets the goal. Only where the costs are
equal does the kind decide. Replicas of a precision that the class doesn't accept never get here (`coserving.Room`).

Costs are compared for replicas as full as the goal allows. What a request takes of a replica *now* would be a bad
guide: an empty replica, however cheap, looks dear beside a full one, and whichever pool was filled first would keep the
load for ever. Among equals, however, the fullest is chosen while it is far from the goal's limit: it shares its steps
among most, and the others empty and can be stopped. Nearer to the limit the load is spread, for the predictions have
errors and those who are there already suffer from each newcomer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tandem.config.gateway_routing import RoutingConfig
from tandem.core.types import ServiceClass
from tandem.gateway.context import RequestContext
from tandem.gateway.replicas.replica import Replica
from tandem.gateway.routing.base import Candidate, Decision
from tandem.gateway.routing.facts import PoolKind
from tandem.gateway.routing.predict import Predictor
from tandem.gateway.routing.prefix_affinity import hit_tokens
from tandem.gateway.routing.prefix_index import PrefixIndex
from tandem.gateway.routing.replica_models import Known, ReplicaModels

_HOME: Final[dict[ServiceClass, PoolKind]] = {"interactive": "paged", "batch": "compiled"}
_AT_EASE: Final = 0.5
"""Share of the goal's limit up to which replicas are filled one after the other."""
_TRIES: Final = 2
_FEW_STEPS: Final = 8


class Hybrid:
    """Pure: what it knows is in `models` and `index`, which others feed."""

    name = "hybrid"

    def __init__(self, models: ReplicaModels, index: PrefixIndex, config: RoutingConfig) -> None:
        self._models = models
        self._index = index
        self._headroom = config.headroom
        self._tolerance = 1.0 + config.cost_tolerance

    def choose(self, request: RequestContext, replicas: Sequence[Replica], now_s: float) -> Decision | None:
        if not replicas:
            return None
        predictor = Predictor(request, now_s, self._headroom)
        known = [self._models.of(replica) for replica in replicas]
        candidates = [
            predictor.candidate(replica, of_it, hit_tokens(self._index, request, replica))
            for replica, of_it in zip(replicas, known, strict=True)
        ]
        fitting = [i for i, candidate in enumerate(candidates) if candidate.meets_goal]
        if not fitting:
            chosen = min(range(len(candidates)), key=lambda i: (candidates[i].goal_share, candidates[i].finish_s))
            reason = "the soonest: none meets the goal"
        elif (untried := _first_untried(fitting, replicas, known)) is not None:
            chosen, reason = untried, "new: a few requests will show how fast it is"
        else:
            chosen = self._cheapest(_HOME[request.service_class], fitting, candidates, known)
            reason = "the cheapest that meets the goal"
        return Decision(replicas[chosen], reason, tuple(candidates), candidates[chosen])

    def sent(self, request: RequestContext, replica: Replica) -> None:
        hit = hit_tokens(self._index, request, replica)
        self._models.of(replica).sent(request, hit)
        self._index.add(replica.id, request.prefix_hashes, request.prompt_tokens)

    def _cheapest(
        self, home: PoolKind, fitting: list[int], candidates: Sequence[Candidate], known: Sequence[Known]
    ) -> int:
        """Of those that cost about the least: one of the class's own kind, then the fullest that is at ease, or else
        the one with most room to its goal."""
        limit = self._tolerance * min(candidates[i].cost_micros or 0.0 for i in fitting)
        near = [i for i in fitting if (candidates[i].cost_micros or 0.0) <= limit]

        def rank(i: int) -> tuple[bool, bool, float, float]:
            candidate = candidates[i]
            share = candidate.goal_share or 0.0
            is_strained = share > _AT_EASE
            second = share if is_strained else candidate.engine_s or 0.0
            return known[i].facts.kind != home, is_strained, second, candidate.finish_s or 0.0

        return min(near, key=rank)


def _first_untried(fitting: list[int], replicas: Sequence[Replica], known: Sequence[Known]) -> int | None:
    """One of which nothing is known but a guess, which might keep it idle for ever. A few at a time test it."""
    for i in fitting:
        if known[i].steps.num_observations < _FEW_STEPS and replicas[i].in_flight < _TRIES:
            return i
    return None
