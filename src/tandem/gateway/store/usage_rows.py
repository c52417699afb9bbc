"""Sums and rows of the ledger, for reports and bills."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sqlalchemy import BigInteger, Connection, Row, Select, case, cast, func, select, tuple_

from tandem.gateway.store.tables import ledger

DAY_US: Final = 86_400_000_000
GROUPS: Final = {
    "key": ledger.c.key_id,
    "tenant": ledger.c.tenant,
    "model": ledger.c.model,
    "pool": ledger.c.pool,
    "replica": ledger.c.replica,
    "class": ledger.c.service_class,
    "status": ledger.c.status,
    "day": cast(ledger.c.time_us // DAY_US, BigInteger),
}
"""What usage can be grouped by."""
SUMS: Final = (
    "prompt_tokens", "cached_tokens", "output_tokens", "queue_s", "prefill_s", "decode_s", "engine_s", "kv_block_s",
    "cost_micros",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which rows. Times in microseconds, the end not included; None: all."""

    from_us: int | None = None
    to_us: int | None = None
    tenant: str | None = None
    key_id: str | None = None


class Position(NamedTuple):
    """Of a row in the ledger's order."""

    time_us: int
    request_id: str


def usage(connection: Connection, groups: Sequence[str], which: Filter) -> list[Row[Any]]:
    """One row a group and currency, in the order of the groups: sums never mix currencies."""
    columns = [GROUPS[name].label(f"by_{name}") for name in groups]
    sums = [func.sum(ledger.c[name]).label(name) for name in SUMS]
    estimated = func.sum(case((ledger.c.is_estimated, 1), else_=0)).label("num_estimated")
    everything = select(*columns, ledger.c.currency, func.count().label("num_requests"), estimated, *sums)
    query = _filtered(everything, which)
    return list(
        connection.execute(
            query.group_by(*(GROUPS[name] for name in groups), ledger.c.currency).order_by(
                *(GROUPS[name] for name in groups), ledger.c.currency
            )
        )
    )


def rows_page(connection: Connection, which: Filter, after: Position | None, limit: int) -> list[Row[Any]]:
    """The next rows, oldest first. Pages, not a cursor: an export of a year holds no connection and no memory."""
    query = _filtered(select(ledger), which)
    if after is not None:
        query = query.where(tuple_(ledger.c.time_us, ledger.c.request_id) > tuple_(after.time_us, after.request_id))
    return list(connection.execute(query.order_by(ledger.c.time_us, ledger.c.request_id).limit(limit)))


def _filtered(query: Select[Any], which: Filter) -> Select[Any]:
    if which.from_us is not None:
        query = query.where(ledger.c.time_us >= which.from_us)
    if which.to_us is not None:
        query = query.where(ledger.c.time_us < which.to_us)
    if which.tenant is not None:
        query = query.where(ledger.c.tenant == which.tenant)
    if which.key_id is not None:
        query = query.where(ledger.c.key_id == which.key_id)
    return query
