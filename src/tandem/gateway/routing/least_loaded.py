"""The replica with the least of its places taken; equal ones in random order, or all would choose the same."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tandem.gateway.context import RequestContext
from tandem.gateway.replicas.replica import Replica
from tandem.gateway.routing.base import Decision
from tandem.gateway.routing.load import load_order
from tandem.gateway.routing.replica_models import ReplicaModels


class LeastLoaded:
    """Counts what this gateway has sent, plus what others had in the engine at the last scrape."""

    name = "least-loaded"

    def __init__(self, models: ReplicaModels, seed: int = 0) -> None:
        self._models = models
        self._random = random.Random(seed)

    def choose(self, request: RequestContext, replicas: Sequence[Replica], now_s: float) -> Decision | None:
        if not replicas:
            return None
        draw = self._random.random
        chosen = min(replicas, key=lambda r: (load_order(r, self._models), draw()))
        return Decision(chosen, "the least loaded")

    def sent(self, request: RequestContext, replica: Replica) -> None:
        """Nothing to remember: the replica counts."""
