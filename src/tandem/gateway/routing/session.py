"""Requests of one session go to one replica while that is not too busy, without a table of sessions.

Rendezvous hashing: every replica gets a score from (session, replica), and the highest wins. A replica that comes or
goes moves only the sessions that are its own. Bounded: a replica above `load_factor` times the average load is passed
over for the next in the session's order (Mirrokni et al., "Consistent Hashing with Bounded Loads", 2018).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2b

from tandem.gateway.context import RequestContext
from tandem.gateway.replicas.replica import Replica
from tandem.gateway.routing.base import Decision
from tandem.gateway.routing.least_loaded import LeastLoaded
from tandem.gateway.routing.replica_models import ReplicaModels


class Session:
    """Requests that name no session go to the least loaded."""

    name = "session"

    def __init__(self, models: ReplicaModels, *, load_factor: float = 1.25, seed: int = 0) -> None:
        assert load_factor >= 1, load_factor
        self._load_factor = load_factor
        self._otherwise = LeastLoaded(models, seed)

    def choose(self, request: RequestContext, replicas: Sequence[Replica], now_s: float) -> Decision | None:
        if not replicas or request.session is None:
            return self._otherwise.choose(request, replicas, now_s)
        limit = self._limit(replicas)
        # Tenants name their sessions themselves: two that chose the same name are two sessions.
        session = f"{request.caller.tenant}\0{request.session}\0".encode("utf-8", "surrogatepass")
        open_ones = [replica for replica in replicas if replica.in_flight < limit]
        chosen = max(open_ones, key=lambda r: _score(session, r))
        if len(open_ones) == len(replicas):
            return Decision(chosen, "the session's own")
        return Decision(chosen, f"the session's first with fewer than {limit} requests")

    def _limit(self, replicas: Sequence[Replica]) -> int:
        """Above the average, so one replica at least is below it."""
        total = 1 + sum(replica.in_flight for replica in replicas)
        return math.ceil(self._load_factor * total / len(replicas))

    def sent(self, request: RequestContext, replica: Replica) -> None:
        """Nothing to remember: the hash is the memory."""


def _score(session: bytes, replica: Replica) -> bytes:
    return blake2b(session + replica.id.encode(), digest_size=8).digest()
