"""The signature of every routing policy: context in, decision out. No policy waits, sends or keeps time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from tandem.gateway.context import RequestContext
from tandem.gateway.replicas.replica import Replica


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """How a replica looked to the policy; for `GET /tandem/route`, headers and scores. Seconds; None: not predicted.

    A Struct although it goes over no wire: one is made for every replica at every request, and a frozen dataclass of
    this size takes longer to make than the prediction in it.
    """

    replica_id: str
    ttft_s: float | None = None
    tpot_s: float | None = None
    finish_s: float | None = None
    engine_s: float | None = None
    cost_micros: float | None = None
    """Pool price x engine seconds, in a replica as full as the goal allows; `engine_s` is as full as it is now."""
    hit_tokens: int = 0
    num_running: float = 0.0
    """Requests that the prediction counted beside this one."""
    queued_tokens: float = 0.0
    """Uncached prompt tokens that it counted before this one's."""
    meets_goal: bool | None = None
    goal_share: float | None = None
    """Of what the goal allows, headroom left out: at most 1 where it is met."""


@dataclass(frozen=True, slots=True)
class Decision:
    replica: Replica
    reason: str
    """One clause for people: "cheapest that meets the goal", "soonest: none meets the goal"."""
    candidates: tuple[Candidate, ...] = ()
    predicted: Candidate | None = None
    """Of the chosen one; scored when the answer ends."""


class RoutingPolicy(Protocol):
    name: str

    def choose(self, request: RequestContext, replicas: Sequence[Replica], now_s: float) -> Decision | None:
        """`replicas`: all that are up, serve the model, take the class, aren't ejected or excluded, and have room.
        None only for an empty list."""
        ...

    def sent(self, request: RequestContext, replica: Replica) -> None:
        """The request has left for this replica: policies that remember prefixes or sessions note it."""
        ...
