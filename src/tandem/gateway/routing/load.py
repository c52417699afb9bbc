"""How busy a replica is, by what was sent and not by what a scrape said: a scrape is old when it arrives."""

from __future__ import annotations

from tandem.gateway.replicas.replica import Replica
from tandem.gateway.routing.replica_models import ReplicaModels, capacity


def relative_load(replica: Replica, models: ReplicaModels) -> float:
    """0 is idle, 1 is full. With one more request counted in, so that of two idle ones the larger is the emptier."""
    known = models.of(replica)
    return (replica.in_flight + known.others + 1) / capacity(replica, known.facts)


def load_order(replica: Replica, models: ReplicaModels) -> tuple[float, int]:
    """Sorts by load, then by prompt tokens that are still to be computed."""
    return relative_load(replica, models), replica.in_flight_prompt_tokens
