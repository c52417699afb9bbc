"""How the gateway chooses replicas."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

PolicyName = Literal["hybrid", "round-robin", "least-loaded", "power-of-two", "prefix-affinity", "session"]


class RoutingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The policy and what it weighs."""

    policy: Annotated[PolicyName, Meta(description="How a replica is chosen for a request.")] = "hybrid"
    headroom: Annotated[
        float,
        Meta(gt=0, le=1, description="Share of a goal that a prediction may use; the rest is for its error."),
    ] = 0.8
    cost_tolerance: Annotated[
        float, Meta(ge=0, le=1, description="Candidates this much dearer than the cheapest count as equal in cost.")
    ] = 0.05
    precisions_interactive: Annotated[
        tuple[str, ...],
        Meta(description='Precisions that interactive requests may be served at, such as "bfloat16"; empty: any.'),
    ] = ()
    precisions_batch: Annotated[
        tuple[str, ...], Meta(description="Precisions that batch requests may be served at; empty: any.")
    ] = ()
    max_prefix_entries: Annotated[
        int, Meta(ge=0, description="Prefix chunks remembered for each replica; 0 forgets prefixes at once.")
    ] = 16_384
    session_load_factor: Annotated[
        float, Meta(ge=1, description="A replica takes a session only up to this multiple of the average load.")
    ] = 1.25
    slow_start_s: Annotated[
        float, Meta(ge=0, description="Seconds over which a new replica's share grows to the full one.")
    ] = 10.0
    interactive_reserve: Annotated[
        float, Meta(ge=0, lt=1, description="Share of each replica's places that batch requests never take.")
    ] = 0.25
    batch_tpot_share: Annotated[
        float,
        Meta(gt=0, le=1, description="Batch is let in while the predicted step stays under this share of the goal."),
    ] = 0.6
    seed: Annotated[int, Meta(description="Seeds random choices, so that a test can repeat them.")] = 0
