"""How much waits in each of the two rooms, and whether one more fits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from tandem.config.gateway_admission import AdmissionConfig, QueueLimits
from tandem.core.types import ServiceClass
from tandem.gateway.context import RequestContext

RoomName = Literal["none_up", "all_full"]
_BYTES_IN_MIB: Final = 1 << 20


@dataclass(slots=True)
class Occupancy:
    """Of one service class in one room."""

    limits: QueueLimits
    num_requests: int = 0
    num_tokens: int = 0
    num_bytes: int = 0

    def full_of(self, context: RequestContext) -> str | None:
        """What would be too much with this one; None: it fits. A request larger than a whole room never fits."""
        if self.num_requests + 1 > self.limits.max_requests:
            return f"{self.limits.max_requests} requests"
        if self.num_tokens + context.total_tokens > self.limits.max_tokens:
            return f"{self.limits.max_tokens} tokens"
        if self.num_bytes + len(context.body) > self.limits.max_mib * _BYTES_IN_MIB:
            return f"{self.limits.max_mib:g} MiB"
        return None

    def take(self, context: RequestContext) -> None:
        self._count(context, 1)

    def give_back(self, context: RequestContext) -> None:
        self._count(context, -1)
        assert min(self.num_requests, self.num_tokens, self.num_bytes) >= 0, "more left the room than came"

    def _count(self, context: RequestContext, sign: int) -> None:
        self.num_requests += sign
        self.num_tokens += sign * context.total_tokens
        self.num_bytes += sign * len(context.body)


class Rooms:
    """(room, class) → what waits there."""

    def __init__(self, config: AdmissionConfig) -> None:
        self._occupied: dict[tuple[RoomName, ServiceClass], Occupancy] = {
            ("none_up", "interactive"): Occupancy(config.none_up.interactive),
            ("none_up", "batch"): Occupancy(config.none_up.batch),
            ("all_full", "interactive"): Occupancy(config.all_full.interactive),
            ("all_full", "batch"): Occupancy(config.all_full.batch),
        }

    def of(self, room: RoomName, service_class: ServiceClass) -> Occupancy:
        return self._occupied[room, service_class]

    def reconfigure(self, config: AdmissionConfig) -> None:
        """New bounds; whoever waits already may stay."""
        for (room, service_class), occupancy in self._occupied.items():
            occupancy.limits = getattr(getattr(config, room), service_class)
