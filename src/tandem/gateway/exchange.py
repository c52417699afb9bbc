"""One request and all that became of it: what accounting.py reads when it is over. Holds no socket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from tandem.gateway.context import RequestContext
from tandem.gateway.replicas.replica import Replica
from tandem.gateway.routing.base import Decision
from tandem.protocol.ledger import LedgerStatus
from tandem.protocol.usage import Usage

if TYPE_CHECKING:
    from tandem.gateway.forwarding import Attempt
    from tandem.gateway.pings import Pings


class ClientStream(Protocol):
    """The client's end of a stream, whatever HTTP library holds it."""

    @property
    def is_started(self) -> bool:
        """Headers are out: from here an error can only be an event."""
        ...

    async def start(self, headers: Mapping[str, str]) -> None: ...

    @property
    def is_chunked(self) -> bool:
        """HTTP's chunks are understood: not so before HTTP/1.1."""
        ...

    def write_framed(self, data: bytes) -> bool:
        """As `write`, of one whole HTTP chunk with its framing."""
        ...

    def write(self, data: bytes) -> bool:
        """Never waits. Whether more is unsent than we want to hold. Nothing happens once the client is gone."""
        ...

    async def drain(self) -> None:
        """Returns when the client has read enough, or is gone."""
        ...

    def abort(self) -> None:
        """The client reads nothing: drop its connection."""
        ...

    async def end(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Answer:
    """A plain answer, ready to be sent."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True, eq=False)
class Exchange:
    """Filled as the request goes on."""

    context: RequestContext
    client: ClientStream | None
    """None: a plain answer is wanted."""
    decision: Decision | None = None
    """Of the newest attempt; of the successful one when it is over."""
    num_attempts: int = 0
    sent_s: float | None = None
    """When the successful attempt left."""
    first_token_s: float | None = None
    """When the first content of a stream was there; on the gateway's clock."""
    num_events: int = 0
    usage: Usage | None = None
    answer_bytes: int = 0
    status: int = 0
    """HTTP's, as the client saw it or would have."""
    outcome: LedgerStatus = "aborted"
    """Until something better is known: a handler that is cancelled says nothing."""
    is_reserved: bool = False
    reserved_tokens: int = 0
    """Taken from the key's limits."""
    was_hedged: bool = False
    pings: Pings | None = None
    attempts: set[Attempt] = field(default_factory=set)
    """Those that run: one, or two while hedging."""

    @property
    def replica(self) -> Replica | None:
        return None if self.decision is None else self.decision.replica
