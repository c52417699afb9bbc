"""One row of the ledger: what a request used and what that cost. The gateway writes it; reports and bills read it."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from tandem.core.types import ServiceClass

LedgerStatus = Literal["ok", "failed", "aborted", "refused"]
"""Answered in full; broken by us; left by the client; never accepted."""


class LedgerRow(msgspec.Struct, frozen=True, kw_only=True):
    """Money is whole micro-units of `currency`, so that sums are exact; times are seconds."""

    request_id: str
    """Unique in the deployment; never the client's own id."""
    time: datetime
    """When the request ended; UTC."""
    tenant: str
    key_id: str
    """Names the API key; never the key itself."""
    service_class: ServiceClass
    model: str
    pool: str
    replica: str
    prompt_tokens: int
    cached_tokens: int
    """Of the prompt tokens: read from the prefix cache."""
    output_tokens: int
    queue_s: float
    prefill_s: float
    decode_s: float
    engine_s: float
    kv_block_s: float
    cost_micros: int
    currency: str
    price_version: str
    """Which edition of the price table `cost_micros` was computed with."""
    is_estimated: bool
    """True where the upstream engine reported no times or tokens, and the gateway filled them in."""
    status: LedgerStatus

    def __post_init__(self) -> None:
        assert self.time.tzinfo is not None, "a ledger row needs a time with a zone"
        assert 0 <= self.cached_tokens <= self.prompt_tokens, (self.cached_tokens, self.prompt_tokens)
