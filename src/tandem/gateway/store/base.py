"""What the rest of the gateway asks of the store. Nothing on the chat path waits for a database."""

from __future__ import annotations

from typing import Protocol

from tandem.gateway.context import Caller
from tandem.protocol.ledger import LedgerRow


class Keys(Protocol):
    def caller(self, token: str | None) -> Caller:
        """Whose key this is, from memory. Raises `Unauthorized`. Anonymous where no keys are configured."""
        ...


class Ledger(Protocol):
    def record(self, row: LedgerRow) -> None:
        """Keeps the row; never waits, never raises. Written in batches; spooled to disk while the database is away."""
        ...


class Limits(Protocol):
    def take(self, caller: Caller, prompt_tokens: int, output_tokens: int, now_s: float) -> None:
        """Reserves a request against the key's rates and budget. Raises `Overloaded` with retry_after_s."""
        ...

    def settle(self, caller: Caller, reserved_tokens: int, used_tokens: int, cost_micros: int) -> None:
        """What it really took."""
        ...
