"""Two at random, and of them the less loaded: nearly as even as looking at all, at a cost that doesn't grow.

Several gateways that all looked at all replicas would run to the same one between two scrapes; with two random
choices they don't. After Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing" (2001).
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from tandem.gateway.context import RequestContext
from tandem.gateway.replicas.replica import Replica
from tandem.gateway.routing.base import Decision
from tandem.gateway.routing.load import load_order
from tandem.gateway.routing.replica_models import ReplicaModels


class PowerOfTwo:
    """Seeded, so that a run can be repeated."""

    name = "power-of-two"

    def __init__(self, models: ReplicaModels, seed: int = 0) -> None:
        self._models = models
        self._random = random.Random(seed)

    def choose(self, request: RequestContext, replicas: Sequence[Replica], now_s: float) -> Decision | None:
        if not replicas:
            return None
        if len(replicas) == 1:
            return Decision(replicas[0], "the only one")
        first, second = self._random.sample(replicas, 2)
        lighter = min(first, second, key=lambda r: load_order(r, self._models))
        return Decision(lighter, "the less loaded of two drawn at random")

    def sent(self, request: RequestContext, replica: Replica) -> None:
        """Nothing to remember: the replica counts."""
