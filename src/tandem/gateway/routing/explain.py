"""The body of `GET /tandem/route`: where a request would go now, and why not elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tandem.core.types import ServiceClass
from tandem.gateway.context import RequestContext
from tandem.gateway.replicas.replica import Replica
from tandem.gateway.routing.base import Candidate, Decision, RoutingPolicy
from tandem.gateway.routing.coserving import Room


class ExplainedGoal(msgspec.Struct, kw_only=True):
    ttft_s: float | None
    tpot_s: float | None
    deadline_s: float | None


class ExplainedReplica(msgspec.Struct, kw_only=True):
    """One replica of the model, chosen or not. Predictions are None where the policy makes none, or wasn't asked."""

    replica: str
    pool: str
    state: str
    in_flight: int
    why_not: str | None
    """What keeps the request from it; None: it was a candidate."""
    is_chosen: bool = False
    ttft_s: float | None = None
    tpot_s: float | None = None
    finish_s: float | None = None
    engine_s: float | None = None
    cost_micros: float | None = None
    hit_tokens: int | None = None
    meets_goal: bool | None = None
    goal_share: float | None = None


class RouteExplanation(msgspec.Struct, kw_only=True):
    """Holds no part of the prompt."""

    policy: str
    model: str
    service_class: ServiceClass
    goal: ExplainedGoal
    prompt_tokens: int
    output_tokens: int
    """Expected."""
    chosen: str | None
    """None: it would wait."""
    reason: str
    candidates: list[ExplainedReplica]


def explain(
    policy: RoutingPolicy, room: Room, request: RequestContext, replicas: Sequence[Replica], now_s: float
) -> RouteExplanation:
    """`replicas`: all of the model's, whatever their state. Nothing is sent, and nothing remembered."""
    open_ones = room.available(request, replicas, now_s)
    decision = policy.choose(request, open_ones, now_s)
    goal = request.goal
    return RouteExplanation(
        policy=policy.name,
        model=request.model,
        service_class=request.service_class,
        goal=ExplainedGoal(ttft_s=goal.ttft_s, tpot_s=goal.tpot_s, deadline_s=goal.deadline_s),
        prompt_tokens=request.prompt_tokens,
        output_tokens=request.output_tokens,
        chosen=decision.replica.id if decision else None,
        reason=decision.reason if decision else _why_none(room, request, replicas, now_s),
        candidates=_candidates(room, request, replicas, {r.id for r in open_ones}, decision, now_s),
    )


def _candidates(
    room: Room,
    request: RequestContext,
    replicas: Sequence[Replica],
    open_ids: set[str],
    decision: Decision | None,
    now_s: float,
) -> list[ExplainedReplica]:
    seen = {candidate.replica_id: candidate for candidate in decision.candidates} if decision else {}
    return [
        _explained(
            replica,
            None if replica.id in open_ids else room.why_not(request, replica, now_s) or "full: it is starting slowly",
            seen.get(replica.id),
            decision is not None and replica is decision.replica,
        )
        for replica in replicas
    ]


def _explained(replica: Replica, why_not: str | None, candidate: Candidate | None, is_chosen: bool) -> ExplainedReplica:
    explained = ExplainedReplica(
        replica=replica.id,
        pool=replica.pool.name,
        state=replica.state,
        in_flight=replica.in_flight,
        why_not=why_not,
        is_chosen=is_chosen,
    )
    if candidate is not None:
        for name in (
            "ttft_s",
            "tpot_s",
            "finish_s",
            "engine_s",
            "cost_micros",
            "hit_tokens",
            "meets_goal",
            "goal_share",
        ):
            setattr(explained, name, getattr(candidate, name))
    return explained


def _why_none(room: Room, request: RequestContext, replicas: Sequence[Replica], now_s: float) -> str:
    if not replicas:
        return "no pool serves this model to this class"
    if not room.usable(request, replicas, now_s):
        return "it would wait: no replica is up"
    return "it would wait: all replicas are full"
