"""Results of lines: kept in the database as they come, each once, and written to files when the batch ends.

A line's result and the batch's counts change in one transaction, and only if the line had none: whatever ran twice, by
a crash or a takeover, a client sees once.
"""

from __future__ import annotations

import secrets
from typing import NamedTuple

import msgspec
from sqlalchemy import Connection, delete, select, update

from tandem.gateway.store.tables import batch_results, batches
from tandem.gateway.store.upsert import insert_new
from tandem.protocol.batch import BatchLineError, BatchResultLine

PAGE_ROWS = 500


class LineResult(NamedTuple):
    """What became of a line."""

    number: int
    is_success: bool
    """Answered with 2xx: it goes to the output file, all others to the error file."""
    encoded: bytes
    """Its line of that file, without its end."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


def save_result(connection: Connection, batch_id: str, result: LineResult) -> bool:
    """False if the line had a result already; that one stays."""
    row = {
        "batch_id": batch_id, "line": result.number, "is_success": result.is_success, "result": result.encoded,
    }  # fmt: skip
    if not insert_new(connection, batch_results, [row]):
        return False
    table = batches.c
    counts = {
        "completed": table.completed + int(result.is_success),
        "failed": table.failed + int(not result.is_success),
        "input_tokens": table.input_tokens + result.prompt_tokens,
        "cached_tokens": table.cached_tokens + result.cached_tokens,
        "output_tokens": table.output_tokens + result.completion_tokens,
    }
    connection.execute(update(batches).where(table.id == batch_id).values(counts))
    return True


def done_lines(connection: Connection, batch_id: str) -> set[int]:
    """Numbers of the lines that have a result."""
    query = select(batch_results.c.line).where(batch_results.c.batch_id == batch_id)
    return set(connection.execute(query).scalars())


def results_page(connection: Connection, batch_id: str, after_line: int) -> list[tuple[int, bool, bytes]]:
    """(line, is_success, encoded) of the next lines, in the file's order."""
    table = batch_results.c
    query = (
        select(table.line, table.is_success, table.result)
        .where(table.batch_id == batch_id, table.line > after_line)
        .order_by(table.line)
        .limit(PAGE_ROWS)
    )
    return [(row.line, row.is_success, row.result) for row in connection.execute(query)]


def drop_results(connection: Connection, batch_id: str) -> None:
    connection.execute(delete(batch_results).where(batch_results.c.batch_id == batch_id))


class _ResponseLine(msgspec.Struct, kw_only=True):
    """`BatchResultLine` with the answer's body as it came: not decoded and encoded again."""

    id: str
    custom_id: str
    response: _Response
    error: None = None


class _Response(msgspec.Struct, kw_only=True):
    """`BatchLineResponse`."""

    status_code: int
    request_id: str
    body: msgspec.Raw


def encode_answer(custom_id: str, status: int, request_id: str, body: bytes) -> bytes:
    """The line of a file for an HTTP answer whose body is a JSON object on one line or several."""
    response = _Response(status_code=status, request_id=request_id, body=msgspec.Raw(_on_one_line(body)))
    return msgspec.json.encode(_ResponseLine(id=_new_id(), custom_id=custom_id, response=response))


def encode_failure(custom_id: str, code: str, message: str) -> bytes:
    """The line of an error file for a request that has no HTTP answer."""
    error = BatchLineError(code=code, message=message)
    return msgspec.json.encode(BatchResultLine(id=_new_id(), custom_id=custom_id, error=error))


def _on_one_line(body: bytes) -> bytes:
    # Outside of strings a line's end means nothing in JSON, and inside it can't stand.
    return body.replace(b"\r", b" ").replace(b"\n", b" ") if b"\n" in body or b"\r" in body else body


def _new_id() -> str:
    return f"batch_req_{secrets.token_hex(12)}"
