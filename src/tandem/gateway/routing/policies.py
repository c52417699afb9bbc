"""Name → routing policy. A new policy is a new file and a line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tandem.config.gateway_routing import PolicyName, RoutingConfig
from tandem.gateway.routing.base import RoutingPolicy
from tandem.gateway.routing.hybrid import Hybrid
from tandem.gateway.routing.least_loaded import LeastLoaded
from tandem.gateway.routing.power_of_two import PowerOfTwo
from tandem.gateway.routing.prefix_affinity import PrefixAffinity
from tandem.gateway.routing.prefix_index import PrefixIndex
from tandem.gateway.routing.replica_models import ReplicaModels
from tandem.gateway.routing.round_robin import RoundRobin
from tandem.gateway.routing.session import Session


@dataclass(slots=True)
class PolicyParts:
    """What policies share, and what feeds them. One for a gateway; a reload makes a new policy over the same parts."""

    config: RoutingConfig = field(default_factory=RoutingConfig)
    models: ReplicaModels = field(default_factory=ReplicaModels)
    index: PrefixIndex = field(default_factory=PrefixIndex)

    @classmethod
    def of(cls, config: RoutingConfig, models: ReplicaModels) -> PolicyParts:
        return cls(config, models, PrefixIndex(config.max_prefix_entries))


POLICIES: Final[dict[PolicyName, Callable[[PolicyParts], RoutingPolicy]]] = {
    "hybrid": lambda parts: Hybrid(parts.models, parts.index, parts.config),
    "round-robin": lambda parts: RoundRobin(),
    "least-loaded": lambda parts: LeastLoaded(parts.models, parts.config.seed),
    "power-of-two": lambda parts: PowerOfTwo(parts.models, parts.config.seed),
    "prefix-affinity": lambda parts: PrefixAffinity(parts.models, parts.index),
    "session": lambda parts: Session(
        parts.models, load_factor=parts.config.session_load_factor, seed=parts.config.seed
    ),
}


def make_policy(parts: PolicyParts) -> RoutingPolicy:
    """The configured one."""
    return POLICIES[parts.config.policy](parts)
