"""Which replicas have room for a request: places, slow start, and what batch work must leave to interactive traffic.

Batch fills what interactive leaves. It never takes the last places of a replica, and it is let in only while the
predicted step stays well under the per-token goal: in a shared batch every sequence slows every other, whatever its
priority, so this holds for engines with priorities of their own too.
"""

from __future__ import annotations

from collections.abc import Iterable

from tandem.config.gateway_routing import RoutingConfig
from tandem.gateway.context import Goal, RequestContext
from tandem.gateway.replicas.circuit import start_share
from tandem.gateway.replicas.replica import Replica
from tandem.gateway.routing.replica_models import Known, ReplicaModels, capacity


class Room:
    """Filters replicas; `interactive` is the goal that batch work must not spoil."""

    def __init__(self, models: ReplicaModels, config: RoutingConfig, interactive: Goal) -> None:
        self._models = models
        self._config = config
        self._interactive = interactive
        self._precisions = {
            "interactive": frozenset(config.precisions_interactive),
            "batch": frozenset(config.precisions_batch),
        }

    def available(self, request: RequestContext, replicas: Iterable[Replica], now_s: float) -> list[Replica]:
        """Those that are up, not ejected, not tried already, of an accepted precision, and have room."""
        up = [r for r in self.usable(request, replicas, now_s) if r.id not in request.excluded]
        # When all are new, nobody is there to spare them.
        has_old = any(self._is_warm(replica, now_s) for replica in up)
        return [r for r in up if self._has_room(request, r, now_s, has_old)]

    def usable(self, request: RequestContext, replicas: Iterable[Replica], now_s: float) -> list[Replica]:
        """Those that could take it if they had room. None: it waits in the room "none up"."""
        accepted = self._precisions[request.service_class]
        return [r for r in replicas if r.is_available(now_s) and self._accepts(accepted, r)]

    def why_not(self, request: RequestContext, replica: Replica, now_s: float) -> str | None:
        """For people: what keeps the request from this replica; None: nothing."""
        if replica.state != "up":
            return f"{replica.state}: {replica.reason}" if replica.reason else replica.state
        if not replica.is_available(now_s):
            return f"ejected for {replica.ejected_until_s - now_s:.0f} s more"
        if replica.id in request.excluded:
            return "failed this request before"
        if not self._accepts(self._precisions[request.service_class], replica):
            return f"{request.service_class} requests don't accept its precision"
        return None if self._has_room(request, replica, now_s, True) else "full"

    def _accepts(self, accepted: frozenset[str], replica: Replica) -> bool:
        if not accepted:
            return True
        precision = self._models.of(replica).facts.precision
        return precision is None or precision in accepted

    def _has_room(self, request: RequestContext, replica: Replica, now_s: float, has_old: bool) -> bool:
        if replica.trial_limit is not None and replica.in_flight >= replica.trial_limit:
            return False  # its circuit is half open: a few requests show whether it is well again
        known = self._models.of(replica)
        places = float(capacity(replica, known.facts))
        if has_old and not self._is_warm(replica, now_s):
            places = max(1.0, places * self._share(replica, now_s))
        if request.service_class == "batch":
            return self._has_room_for_batch(replica, known, places, now_s)
        return replica.in_flight < places

    def _has_room_for_batch(self, replica: Replica, known: Known, places: float, now_s: float) -> bool:
        if not self._serves_interactive(replica, known):
            return replica.in_flight < places
        if replica.in_flight >= max(1.0, places * (1.0 - self._config.interactive_reserve)):
            return False
        if self._interactive.tpot_s is None or not replica.in_flight:
            return True
        step_s = known.steps.decode_step_s(replica.in_flight + known.others + 1)
        tpot_s = step_s / (1.0 - known.prefill_share(now_s)) * known.bias["interactive"].tpot
        return tpot_s <= self._config.batch_tpot_share * self._interactive.tpot_s

    def _serves_interactive(self, replica: Replica, known: Known) -> bool:
        """A replica that misses the interactive goal even when it is empty has nothing to keep free for it."""
        if replica.in_flight_by_class["interactive"] > 0:
            return True
        can_meet = self._interactive.tpot_s is None or known.steps.decode_step_s(1) <= self._interactive.tpot_s
        return known.facts.takes_interactive and can_meet

    def _is_warm(self, replica: Replica, now_s: float) -> bool:
        return self._share(replica, now_s) == 1.0

    def _share(self, replica: Replica, now_s: float) -> float:
        return start_share(now_s - replica.up_since_s, self._config.slow_start_s)
