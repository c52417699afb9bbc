"""Ledger rows for tests."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tandem.protocol.ledger import LedgerRow

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)


def ledger_row(request_id: str, **changes: Any) -> LedgerRow:
    fields: dict[str, Any] = {
        "request_id": request_id, "time": NOON, "tenant": "t", "key_id": "k", "service_class": "interactive",
        "model": "m", "pool": "p", "replica": "p-1", "prompt_tokens": 10, "cached_tokens": 4, "output_tokens": 5,
        "queue_s": 0.5, "prefill_s": 0.25, "decode_s": 1.0, "engine_s": 0.75, "kv_block_s": 2.0, "cost_micros": 30,
        "currency": "EUR", "price_version": "1", "is_estimated": False, "status": "ok",
    }  # fmt: skip
    return LedgerRow(**fields | changes)
