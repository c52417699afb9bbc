"""The replica that has the prompt's beginning in its cache, unless that one is too busy.

Affinity alone piles everything that begins alike on one replica, which then ends slower than round robin. So a hit is
worth the tokens that it saves and no more: the least total of work before the request and work of its own wins. And a
replica well above the average load is not chosen for a hit at all, whatever the estimate says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tandem.gateway.context import RequestContext
from tandem.gateway.replicas.replica import Replica
from tandem.gateway.routing.base import Candidate, Decision
from tandem.gateway.routing.prefix_index import PrefixIndex
from tandem.gateway.routing.replica_models import ReplicaModels

_CROWDED: Final = 1.5
_SPARE: Final = 2
"""A replica is crowded above this multiple of the average load, plus so many requests."""


class PrefixAffinity:
    """Work is counted in prompt tokens; a running request is worth what its decoding costs in them."""

    name = "prefix-affinity"

    def __init__(self, models: ReplicaModels, index: PrefixIndex) -> None:
        self._models = models
        self._index = index

    def choose(self, request: RequestContext, replicas: Sequence[Replica], now_s: float) -> Decision | None:
        if not replicas:
            return None
        limit = _CROWDED * sum(r.in_flight for r in replicas) / len(replicas) + _SPARE
        best, best_work, candidates = replicas[0], float("inf"), []
        for replica in replicas:
            hit = hit_tokens(self._index, request, replica)
            candidates.append(Candidate(replica.id, hit_tokens=hit))
            work = self._work(request, replica, hit)
            if replica.in_flight > limit:
                work += request.prompt_tokens  # as if nothing were there, and once more
            if (work, replica.id) < (best_work, best.id):
                best, best_work = replica, work
        predicted = next(c for c in candidates if c.replica_id == best.id)
        reason = "the least work, with its prefix there" if predicted.hit_tokens else "the least work"
        return Decision(best, reason, tuple(candidates), predicted)

    def _work(self, request: RequestContext, replica: Replica, hit: int) -> float:
        """Prompt tokens before and of the request, and what the running answers will still take."""
        known = self._models.of(replica)
        cost = known.steps.cost
        decoding = known.mean_output_tokens * (cost.token_s + cost.sequence_s) / max(cost.token_s, 1e-9)
        queued = replica.in_flight_prompt_tokens * known.uncached_share
        return queued + request.prompt_tokens - hit + (replica.in_flight + known.others) * decoding

    def sent(self, request: RequestContext, replica: Replica) -> None:
        hit = hit_tokens(self._index, request, replica)
        self._models.of(replica).sent(request, hit)
        self._index.add(replica.id, request.prefix_hashes, request.prompt_tokens)


def hit_tokens(index: PrefixIndex, request: RequestContext, replica: Replica) -> int:
    """Prompt tokens that the replica probably needs not compute. The last token is always computed."""
    if not request.prefix_hashes:
        return 0
    hits = index.num_hits(replica.id, request.prefix_hashes)
    return min(request.prompt_tokens * hits // len(request.prefix_hashes), request.prompt_tokens - 1)
