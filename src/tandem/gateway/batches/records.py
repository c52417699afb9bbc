"""Batches in the database: their rows, and every change of status as one transaction that may be tried again.

    validating ──> in_progress ──> finalizing ──> completed
        │  │            │  │           (all lines have a result)
        │  └─> failed   │  └─────────────────────> expired     (the window has passed)
        └───────────────┴──> cancelling ─────────> cancelled

The runner makes every change but two: clients make a batch, and ask for its end.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any, Final, cast

import msgspec
from sqlalchemy import Connection, Row, insert, select, tuple_, update

from tandem.core.errors import InvalidRequest, NotFound
from tandem.gateway.batches.files import ACTIVE, find_file
from tandem.gateway.batches.wire import BatchObject, BatchUsage, InputTokensDetails
from tandem.gateway.store.errors import Conflict
from tandem.gateway.store.tables import batches
from tandem.protocol.batch import BatchErrorItem, BatchErrors, BatchRequestCounts, BatchStatus

CANCELLABLE: Final = ("validating", "in_progress")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBatch:
    """What a client asked for, checked."""

    tenant: str
    key_id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    window_s: int
    metadata: dict[str, str] | None
    output_keep_s: int | None


@dataclass(frozen=True, slots=True)
class ActiveBatch:
    """What the runner needs of a batch that isn't over."""

    id: str
    tenant: str
    key_id: str
    endpoint: str
    input_file_id: str
    status: BatchStatus
    expires_at: int
    total: int
    output_keep_s: int | None


def create_batch(connection: Connection, new: NewBatch, now_us: int) -> BatchObject:
    """Raises `InvalidRequest` where the input file isn't there, or isn't for batches."""
    now_s = now_us // 1_000_000
    try:
        file = find_file(connection, new.tenant, new.input_file_id, now_s, lock=True)
    except NotFound as error:
        raise InvalidRequest(
            f"input_file_id is {new.input_file_id!r:.80}; there is no such file.", param="input_file_id"
        ) from error
    if file.purpose != "batch":
        raise InvalidRequest(
            f"The file {file.id} has the purpose {file.purpose}; it must be batch.", param="input_file_id"
        )
    batch_id = f"batch_{secrets.token_hex(16)}"
    values = {
        "id": batch_id, "tenant": new.tenant, "key_id": new.key_id, "endpoint": new.endpoint,
        "input_file_id": new.input_file_id, "completion_window": new.completion_window, "status": "validating",
        "created_us": now_us, "expires_at": now_s + new.window_s, "total": 0, "completed": 0, "failed": 0,
        "input_tokens": 0, "cached_tokens": 0, "output_tokens": 0, "output_keep_s": new.output_keep_s,
        "metadata": None if new.metadata is None else msgspec.json.encode(new.metadata).decode(),
    }  # fmt: skip
    connection.execute(insert(batches).values(values))
    return find_batch(connection, new.tenant, batch_id)


def find_batch(connection: Connection, tenant: str, batch_id: str) -> BatchObject:
    """Raises `NotFound`, also for another tenant's."""
    row = connection.execute(select(batches).where(_is(batch_id), batches.c.tenant == tenant)).one_or_none()
    if row is None:
        raise NotFound(f"There is no batch {batch_id!r:.80}.", param="batch_id", code="batch_not_found")
    return _object(row)


def list_batches(connection: Connection, tenant: str, after: str | None, limit: int) -> list[BatchObject]:
    """Newest first. Raises `InvalidRequest` if `after` names none of them."""
    query = select(batches).where(batches.c.tenant == tenant)
    if after is not None:
        mine = (batches.c.id == after) & (batches.c.tenant == tenant)
        start = connection.execute(select(batches.c.created_us, batches.c.id).where(mine)).one_or_none()
        if start is None:
            raise InvalidRequest(f"after is {after!r:.80}, which is no batch of yours.", param="after")
        query = query.where(tuple_(batches.c.created_us, batches.c.id) < tuple_(start.created_us, start.id))
    ordered = query.order_by(batches.c.created_us.desc(), batches.c.id.desc()).limit(limit)
    return [_object(row) for row in connection.execute(ordered)]


def cancel_batch(connection: Connection, tenant: str, batch_id: str, now_s: float) -> BatchObject:
    """Asking twice changes nothing. Raises `NotFound`; `Conflict` for one that is over."""
    ours = (_is(batch_id)) & (batches.c.tenant == tenant)
    statement = update(batches).where(ours, batches.c.status.in_(CANCELLABLE))
    connection.execute(statement.values(status="cancelling", cancelling_at=int(now_s)))
    found = find_batch(connection, tenant, batch_id)
    if found.status not in ("cancelling", "cancelled"):
        raise Conflict(
            f"The batch {batch_id} is {found.status} and can't be cancelled; only one that is "
            f"{' or '.join(CANCELLABLE)} can.",
            code="batch_not_cancellable",
        )
    return found


def active_batches(connection: Connection) -> list[ActiveBatch]:
    """All that aren't over, those first that must be ready first."""
    columns = [batches.c[name] for name in ActiveBatch.__dataclass_fields__]
    query = select(*columns).where(batches.c.status.in_(ACTIVE)).order_by(batches.c.expires_at, batches.c.id)
    return [ActiveBatch(*row) for row in connection.execute(query)]


def begin(connection: Connection, batch_id: str, total: int, model: str | None, now_s: float) -> bool:
    """validating → in_progress; False if a client has cancelled it meanwhile."""
    values = {"status": "in_progress", "in_progress_at": int(now_s), "total": total, "model": model}
    return _change(connection, batch_id, ("validating",), values)


def fail(connection: Connection, batch_id: str, errors: list[BatchErrorItem], now_s: float) -> bool:
    """→ failed: nothing of it has run. `errors` says why."""
    text = msgspec.json.encode(BatchErrors(data=errors)).decode()
    return _change(connection, batch_id, ACTIVE, {"status": "failed", "failed_at": int(now_s), "errors": text})


def begin_finalizing(connection: Connection, batch_id: str, now_s: float) -> bool:
    """in_progress → finalizing. From here on it can't be cancelled."""
    return _change(connection, batch_id, ("in_progress",), {"status": "finalizing", "finalizing_at": int(now_s)})


def end(
    connection: Connection, batch_id: str, status: BatchStatus, files: tuple[str | None, str | None], now_s: float
) -> bool:
    """→ completed, expired or cancelled, with the ids of its output and error files."""
    values = {"status": status, f"{status}_at": int(now_s), "output_file_id": files[0], "error_file_id": files[1]}
    return _change(connection, batch_id, ACTIVE, values)


def _change(connection: Connection, batch_id: str, before: tuple[str, ...], values: dict[str, Any]) -> bool:
    statement = update(batches).where(_is(batch_id), batches.c.status.in_(before)).values(values)
    return connection.execute(statement).rowcount == 1


def _is(batch_id: str) -> Any:
    return batches.c.id == batch_id


def _object(row: Row[Any]) -> BatchObject:
    same = {
        name: getattr(row, name)
        for name in (
            "id", "endpoint", "input_file_id", "completion_window", "output_file_id", "error_file_id", "in_progress_at",
            "expires_at", "finalizing_at", "completed_at", "failed_at", "expired_at", "cancelling_at", "cancelled_at",
            "model",
        )
    }  # fmt: skip
    return BatchObject(
        **same,
        status=cast("BatchStatus", row.status),
        created_at=row.created_us // 1_000_000,
        errors=None if row.errors is None else msgspec.json.decode(row.errors, type=BatchErrors),
        request_counts=BatchRequestCounts(total=row.total, completed=row.completed, failed=row.failed),
        metadata=None if row.metadata is None else msgspec.json.decode(row.metadata, type=dict[str, str]),
        usage=_usage(row) if row.completed else None,
    )


def _usage(row: Row[Any]) -> BatchUsage:
    return BatchUsage(
        input_tokens=row.input_tokens,
        output_tokens=row.output_tokens,
        total_tokens=row.input_tokens + row.output_tokens,
        input_tokens_details=InputTokensDetails(cached_tokens=row.cached_tokens),
    )
