"""Files: bytes in the data folder, what is known of them in the database.

A file is on disk in full before the database names it, and is named no more before it leaves the disk; so a crash
leaves a stray on disk at worst, which `sweep` finds. The folder must be the same for all gateways on one database.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from sqlalchemy import Connection, Row, delete, func, insert, select, tuple_, update

from tandem.core.errors import InvalidRequest, NotFound
from tandem.gateway.batches.wire import FileObject
from tandem.gateway.store.errors import StorageFull
from tandem.gateway.store.tables import batches, files

ACTIVE: Final = ("validating", "in_progress", "finalizing", "cancelling")
"""Statuses of batches that may still read their input."""
STRAY_S: Final = 86_400.0
"""A file on disk that the database doesn't know is a running upload at first, and rubbish after a day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """One row. Times in Unix seconds, `created_us` in microseconds."""

    id: str
    tenant: str
    purpose: str
    filename: str
    size_bytes: int
    created_us: int
    expires_at: int | None = None


class Incoming:
    """A file that is being written. Its methods block. End it with `finish`; always `discard` it at the end."""

    def __init__(self, temporary: Path, place: Path) -> None:
        self._temporary, self._place = temporary, place
        self._file: IO[bytes] = open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")  # noqa: SIM115
        self.num_bytes = 0

    def write(self, data: bytes | bytearray) -> None:
        """Raises `StorageFull`."""
        with storage_errors():
            self._file.write(data)
        self.num_bytes += len(data)

    def finish(self) -> None:
        """Forced to disk, then in its place. Raises `StorageFull`."""
        with storage_errors():
            self._file.flush()
            os.fsync(self._file.fileno())
            self._temporary.rename(self._place)

    def discard(self) -> None:
        """Frees what it holds; a file that wasn't finished is gone."""
        with contextlib.suppress(OSError):
            self._file.close()  # What couldn't be written is tried again here, and not wanted any more.
        self._temporary.unlink(missing_ok=True)


class Folder:
    """Where the bytes are. Its methods block."""

    def __init__(self, path: Path) -> None:
        self._files = path / "files"
        self._incoming = path / "incoming"

    def path_of(self, file_id: str) -> Path:
        """Ids are ours, but may come from a client: nothing but the name of a file may be in one."""
        if "/" in file_id or not file_id.startswith("file-"):
            raise NotFound(f"There is no file {file_id!r:.80}.", code="file_not_found")
        return self._files / file_id

    def create(self, file_id: str) -> Incoming:
        """Raises `StorageFull`."""
        with storage_errors():
            self._incoming.mkdir(parents=True, exist_ok=True)
            self._files.mkdir(parents=True, exist_ok=True)
            return Incoming(self._incoming / f"{file_id}-{secrets.token_hex(4)}", self.path_of(file_id))

    def remove(self, file_id: str) -> None:
        self.path_of(file_id).unlink(missing_ok=True)

    def strays(self, older_than_s: float = STRAY_S) -> list[Path]:
        """Unfinished uploads that nobody goes on with, and finished ones old enough to be in the database by now."""
        limit_s = time.time() - older_than_s
        found = [path for folder in (self._files, self._incoming) if folder.is_dir() for path in folder.iterdir()]
        return [path for path in found if _changed_s(path) < limit_s]


@contextmanager
def storage_errors() -> Iterator[None]:
    """A full disk is no bug, and the client should hear it in words."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise StorageFull(
                "The gateway's disk has no room for this file. Delete files that are no longer needed, "
                "or ask its operator for more room."
            ) from error
        raise


def new_id() -> str:
    return f"file-{secrets.token_hex(16)}"


def add_file(connection: Connection, record: FileRecord, max_tenant_bytes: int | None = None) -> None:
    """Raises `StorageFull` where the tenant's files would pass their share."""
    if max_tenant_bytes is not None and tenant_bytes(connection, record.tenant) + record.size_bytes > max_tenant_bytes:
        raise StorageFull(
            f"The tenant's files may take {max_tenant_bytes} bytes and this one would pass that; delete some first."
        )
    columns = {name: getattr(record, name) for name in FileRecord.__dataclass_fields__}
    connection.execute(insert(files).values(columns | {"filename": record.filename[:255]}))


def tenant_bytes(connection: Connection, tenant: str) -> int:
    query = select(func.coalesce(func.sum(files.c.size_bytes), 0))
    return int(connection.execute(query.where(files.c.tenant == tenant, files.c.deleted_at.is_(None))).scalar_one())


def find_file(connection: Connection, tenant: str, file_id: str, now_s: float, *, lock: bool = False) -> FileRecord:
    """Raises `NotFound`, also for another tenant's, a deleted or an expired one."""
    query = select(files).where(files.c.id == file_id, files.c.tenant == tenant, _is_there(now_s))
    row = connection.execute(query.with_for_update() if lock else query).one_or_none()
    if row is None:
        raise NotFound(f"There is no file {file_id!r:.80}.", param="file_id", code="file_not_found")
    return _record(row)


def list_files(
    connection: Connection,
    tenant: str,
    now_s: float,
    *,
    purpose: str | None,
    after: str | None,
    limit: int,
    is_descending: bool,
) -> list[FileRecord]:
    """At most `limit`, after the one that `after` names. Raises `InvalidRequest` if that isn't there."""
    query = select(files).where(files.c.tenant == tenant, _is_there(now_s))
    if purpose is not None:
        query = query.where(files.c.purpose == purpose)
    if after is not None:
        start = _position(connection, tenant, after)
        order = (files.c.created_us, files.c.id)
        query = query.where(tuple_(*order) < tuple_(*start) if is_descending else tuple_(*order) > tuple_(*start))
    columns = (files.c.created_us, files.c.id)
    ordered = query.order_by(*(column.desc() if is_descending else column.asc() for column in columns))
    return [_record(row) for row in connection.execute(ordered.limit(limit))]


def delete_file(connection: Connection, tenant: str, file_id: str, now_s: float) -> bool:
    """Clients see it no more. True if its bytes may go too: no batch reads it. Raises `NotFound`."""
    find_file(connection, tenant, file_id, now_s, lock=True)
    connection.execute(update(files).where(files.c.id == file_id).values(deleted_at=int(now_s)))
    return not _is_read(connection, file_id)


def unread_files(connection: Connection, now_s: float, limit: int = 1000) -> list[str]:
    """Deleted or expired, and read by no batch: these may be removed and forgotten."""
    gone = files.c.deleted_at.is_not(None) | (files.c.expires_at <= int(now_s))
    reading = select(batches.c.input_file_id).where(batches.c.status.in_(ACTIVE))
    query = select(files.c.id).where(gone, files.c.id.not_in(reading)).limit(limit)
    return list(connection.execute(query).scalars())


def forget_files(connection: Connection, ids: list[str]) -> None:
    connection.execute(delete(files).where(files.c.id.in_(ids)))


def known_files(connection: Connection, ids: list[str]) -> set[str]:
    return set(connection.execute(select(files.c.id).where(files.c.id.in_(ids))).scalars())


def file_object(record: FileRecord) -> FileObject:
    made = FileObject(
        id=record.id,
        bytes=record.size_bytes,
        created_at=record.created_us // 1_000_000,
        filename=record.filename,
        purpose=record.purpose,
    )
    if record.expires_at is not None:
        made.expires_at = record.expires_at
    return made


def _is_there(now_s: float) -> Any:
    return files.c.deleted_at.is_(None) & (files.c.expires_at.is_(None) | (files.c.expires_at > int(now_s)))


def _is_read(connection: Connection, file_id: str) -> bool:
    query = select(batches.c.id).where(batches.c.input_file_id == file_id, batches.c.status.in_(ACTIVE)).limit(1)
    return connection.execute(query).first() is not None


def _position(connection: Connection, tenant: str, file_id: str) -> tuple[int, str]:
    query = select(files.c.created_us, files.c.id).where(files.c.id == file_id, files.c.tenant == tenant)
    row = connection.execute(query).one_or_none()
    if row is None:
        raise InvalidRequest(f"after is {file_id!r:.80}, which is no file of yours.", param="after")
    return row.created_us, row.id


def _record(row: Row[Any]) -> FileRecord:
    return FileRecord(**{name: getattr(row, name) for name in FileRecord.__dataclass_fields__})


def _changed_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return float("inf")
