"""The ledger in the database: rows go in once, however often they are sent; and the sums that budgets need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, select, text

from tandem.gateway.store.tables import ledger, spend
from tandem.gateway.store.upsert import add_to, insert_new
from tandem.protocol.ledger import LedgerRow

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_WIDTHS: Final = {name: column.type.length for name, column in ledger.c.items() if hasattr(column.type, "length")}
"""Column → most characters. PostgreSQL refuses longer ones, and a row must never be refused."""
_INSERT_JSON: Final = text(
    f"INSERT INTO ledger ({', '.join(ledger.c.keys())}) "
    f"SELECT {', '.join(ledger.c.keys())} FROM json_populate_recordset(NULL::ledger, CAST(:rows AS json)) "
    "ON CONFLICT (request_id) DO NOTHING RETURNING request_id"
)


def insert_rows(connection: Connection, rows: Sequence[LedgerRow]) -> int:
    """How many were new. Rows that are there already change nothing: sums count each request once.

    Another gateway that inserts the same request in this moment waits for this transaction, or this one for it.
    """
    # In one order everywhere, so that two gateways never wait for each other.
    unique = {row.request_id: row for row in sorted(rows, key=lambda row: row.request_id)}
    inserted = _insert_new(connection, [_columns(row) for row in unique.values()])
    add_to(connection, spend, _sums(unique[request_id] for request_id in inserted), "micros")
    return len(inserted)


def _insert_new(connection: Connection, rows: list[dict[str, Any]]) -> list[str]:
    """Ids of those that were new."""
    if connection.dialect.name != "postgresql":
        return insert_new(connection, ledger, rows)
    # Psycopg reads a statement with ten thousand placeholders six times as slowly as this one.
    return list(connection.execute(_INSERT_JSON, {"rows": msgspec.json.encode(rows).decode()}).scalars())


def spent_micros(connection: Connection, month: int) -> dict[str, int]:
    """Key id → what it cost in a month."""
    rows = connection.execute(select(spend.c.key_id, spend.c.micros).where(spend.c.month == month))
    return {row.key_id: row.micros for row in rows}


def month_of(time: datetime) -> int:
    """202612 for any moment of December 2026, UTC."""
    utc = time.astimezone(UTC)
    return utc.year * 100 + utc.month


def time_us(time: datetime) -> int:
    return (time - EPOCH) // timedelta(microseconds=1)


def from_us(value: int) -> datetime:
    return EPOCH + timedelta(microseconds=value)


def _sums(rows: Iterable[LedgerRow]) -> list[dict[str, Any]]:
    sums: dict[tuple[str, int], int] = {}
    for row in rows:
        at = (row.key_id, month_of(row.time))
        sums[at] = sums.get(at, 0) + row.cost_micros
    # In one order everywhere, so that two gateways never wait for each other.
    return [
        {"key_id": key, "month": month, "micros": micros} for (key, month), micros in sorted(sums.items()) if micros
    ]


def _columns(row: LedgerRow) -> dict[str, Any]:
    columns = msgspec.structs.asdict(row)
    columns["time_us"] = time_us(columns.pop("time"))
    for name, width in _WIDTHS.items():
        text = columns[name]
        if len(text) > width or "\x00" in text:
            columns[name] = text.replace("\x00", "")[:width]
    return columns
