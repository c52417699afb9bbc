"""Each replica in turn. Every model has its own turn, or alternating models would each see half of the replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tandem.gateway.context import RequestContext
from tandem.gateway.replicas.replica import Replica
from tandem.gateway.routing.base import Decision

_MAX_MODELS: Final = 10_000


class RoundRobin:
    """The turn is remembered as a replica's id, so it survives replicas that come and go."""

    name = "round-robin"

    def __init__(self) -> None:
        self._last: dict[str, str] = {}

    def choose(self, request: RequestContext, replicas: Sequence[Replica], now_s: float) -> Decision | None:
        if not replicas:
            return None
        last = self._last.get(request.model, "")
        after = [replica for replica in replicas if replica.id > last]
        return Decision(min(after or replicas, key=_id), "the next in turn")

    def sent(self, request: RequestContext, replica: Replica) -> None:
        if len(self._last) >= _MAX_MODELS:
            self._last.clear()
        self._last[request.model] = replica.id


def _id(replica: Replica) -> str:
    return replica.id
