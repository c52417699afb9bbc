"""What the data path asks of the other parts of the gateway. Each is small enough to be faked in a test by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from tandem.core.types import ServiceClass
from tandem.gateway.context import RequestContext
from tandem.gateway.replicas.replica import Replica
from tandem.gateway.routing.base import Decision
from tandem.gateway.routing.predictions import Outcome


class Pools(Protocol):
    """Which replicas there are, and how each one is."""

    def aliases(self) -> Sequence[str]:
        """The models a client can name."""
        ...

    def replicas(self, model: str, service_class: ServiceClass) -> Sequence[Replica]:
        """All that serve the alias for the class, whatever their state. Raises `NotFound` for an unknown alias."""
        ...

    def answered(self, replica: Replica, latency_s: float | None = None) -> None:
        """A request got its first token, or its whole answer. `latency_s`: to the first token, of streams."""
        ...

    def failed(self, replica: Replica, reason: str) -> None:
        """A request failed because of the replica: unreachable, broken off, silent, an error of its own."""
        ...


class Admission(Protocol):
    """The waiting rooms."""

    async def enter(self, request: RequestContext, choose: Callable[[], Decision | None]) -> Decision:
        """The first decision that `choose` gives. Raises `Overloaded` or `Unavailable`. Cancelled: it leaves."""
        ...

    def notify(self) -> None:
        """A replica came up, or a request ended: somebody may be able to go."""
        ...


class Room(Protocol):
    """Which replicas may take a request now."""

    def available(self, request: RequestContext, replicas: Iterable[Replica], now_s: float) -> list[Replica]:
        """Up, not ejected, not excluded by this request, and with room."""
        ...

    def usable(self, request: RequestContext, replicas: Iterable[Replica], now_s: float) -> list[Replica]:
        """Could take it if they had room; those that this request excludes among them."""
        ...


class Scores(Protocol):
    """Compares what a policy predicted with what came."""

    def ended(self, request: RequestContext, decision: Decision, outcome: Outcome) -> None: ...
