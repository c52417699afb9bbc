"""Ledger rows for tests, and waiting for what happens in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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


async def until(is_so: Callable[[], bool], timeout_s: float = 30.0) -> None:
    """As soon as it is; fails if it never comes to be."""
    async with asyncio.timeout(timeout_s):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
