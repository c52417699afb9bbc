"""The end of a batch: its results become files, and its status and the files' names are written in one transaction.

Everything before that transaction can be done again from the start; after a crash, files of the last try are strays.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, select

from tandem.config.gateway_store import BatchesConfig
from tandem.gateway.batches.files import ACTIVE, FileRecord, Folder, Incoming, add_file, new_id
from tandem.gateway.batches.input import read_input
from tandem.gateway.batches.records import ActiveBatch, end
from tandem.gateway.batches.results import drop_results, encode_failure, results_page
from tandem.gateway.store.database import Database
from tandem.gateway.store.tables import batches
from tandem.protocol.batch import BatchStatus

UNDONE: Final[dict[str, tuple[str, str]]] = {
    "expired": ("batch_expired", "This request could not be answered before the completion window ended."),
    "cancelled": ("batch_cancelled", "This request was not answered before the batch was cancelled."),
}
"""Final status → code and message of the lines that have no result."""


@dataclass(frozen=True, slots=True)
class Written:
    """Files on disk that the database doesn't know yet. None: it would be empty."""

    output: FileRecord | None
    error: FileRecord | None

    def records(self) -> list[FileRecord]:
        return [record for record in (self.output, self.error) if record is not None]

    def ids(self) -> tuple[str | None, str | None]:
        return (self.output.id if self.output else None, self.error.id if self.error else None)


def write_files(
    batch: ActiveBatch, status: BatchStatus, database: Database, folder: Folder, config: BatchesConfig, now_us: int
) -> Written:
    """Every line of the input is in one of the two. Blocks. Raises `DatabaseAway`, `StorageFull`, `OSError`."""
    output_id, error_id = new_id(), new_id()
    with ExitStack() as stack:
        output = _open(stack, folder, output_id)
        error = _open(stack, folder, error_id)
        for is_success, encoded in _merged(batch, status, database, folder, config):
            (output if is_success else error).write(encoded + b"\n")
        for file in (output, error):
            if file.num_bytes:
                file.finish()
        keep_s = batch.output_keep_s or config.keep_days * 86_400
        expires_at = int(now_us / 1_000_000 + keep_s)

        def record(file: Incoming, file_id: str, kind: str) -> FileRecord | None:
            name = f"{batch.id}_{kind}.jsonl"
            return FileRecord(
                id=file_id, tenant=batch.tenant, purpose="batch_output", filename=name, size_bytes=file.num_bytes,
                created_us=now_us, expires_at=expires_at,
            ) if file.num_bytes else None  # fmt: skip

        return Written(record(output, output_id, "output"), record(error, error_id, "error"))


def close_batch(
    connection: Connection, batch: ActiveBatch, status: BatchStatus, written: Written, now_s: float
) -> bool:
    """The transaction. False if it had been closed already, when an answer to an earlier try was lost."""
    query = select(batches.c.status).where(batches.c.id == batch.id).with_for_update()
    if connection.execute(query).scalar_one_or_none() not in ACTIVE:
        return False
    for record in written.records():
        add_file(connection, record)
    end(connection, batch.id, status, written.ids(), now_s)
    drop_results(connection, batch.id)
    return True


def discard(folder: Folder, written: Written) -> None:
    for record in written.records():
        folder.remove(record.id)


def _open(stack: ExitStack, folder: Folder, file_id: str) -> Incoming:
    file = folder.create(file_id)
    stack.callback(file.discard)
    return file


def _merged(
    batch: ActiveBatch, status: BatchStatus, database: Database, folder: Folder, config: BatchesConfig
) -> Iterator[tuple[bool, bytes]]:
    """(is_success, line) in the input's order: results, and for lines without one, why."""
    results = _results(batch.id, database)
    if batch.total == 0 or status not in UNDONE:
        yield from ((is_success, encoded) for _, is_success, encoded in results)
        return
    code, message = UNDONE[status]
    following = next(results, None)
    for line in read_input(_path(folder, batch), config):
        if following is not None and following[0] == line.number:
            yield following[1], following[2]
            following = next(results, None)
        else:
            yield False, encode_failure(line.custom_id, code, message)


def _results(batch_id: str, database: Database) -> Iterator[tuple[int, bool, bytes]]:
    last = 0
    while page := database.read_now(lambda connection, last=last: results_page(connection, batch_id, last)):  # type: ignore[misc]
        yield from page
        last = page[-1][0]


def _path(folder: Folder, batch: ActiveBatch) -> Path:
    return folder.path_of(batch.input_file_id)
