"""OpenAI's batch API: the lines of its files and the batch object. The gateway stores and runs them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tandem.core.errors import InvalidRequest
from tandem.protocol.json_errors import invalid_json

BatchEndpoint = Literal["/v1/chat/completions", "/v1/completions"]
BatchStatus = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]


class BatchRequestLine(msgspec.Struct, kw_only=True):
    """One line of an input file: one request."""

    custom_id: str
    """The caller's name for the line, unique in the file; answers come in any order."""
    url: str
    body: dict[str, Any]
    method: str = "POST"


class BatchLineResponse(msgspec.Struct, kw_only=True):
    """An HTTP answer, as JSON."""

    status_code: int
    request_id: str
    body: dict[str, Any]


class BatchLineError(msgspec.Struct, kw_only=True):
    """Why a line has no HTTP answer at all: expired, cancelled, or never sent."""

    code: str
    message: str


class BatchResultLine(msgspec.Struct, kw_only=True):
    """One line of an output or error file. One of `response` and `error` is null."""

    id: str
    custom_id: str
    response: BatchLineResponse | None = None
    error: BatchLineError | None = None


class CreateBatchRequest(msgspec.Struct, kw_only=True):
    """`POST /v1/batches`."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None


class BatchRequestCounts(msgspec.Struct, kw_only=True):
    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchErrorItem(msgspec.Struct, kw_only=True):
    """What is wrong with an input file. `line` counts from 1 in the file."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchErrors(msgspec.Struct, kw_only=True):
    data: list[BatchErrorItem]
    object: str = "list"


class Batch(msgspec.Struct, kw_only=True):
    """A batch as clients see it. Times are Unix seconds; keys are always there, null until they apply."""

    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    status: BatchStatus
    created_at: int
    object: str = "batch"
    errors: BatchErrors | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    expires_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: BatchRequestCounts = msgspec.field(default_factory=BatchRequestCounts)
    metadata: dict[str, str] | None = None


class BatchList(msgspec.Struct, kw_only=True):
    """`GET /v1/batches`."""

    data: list[Batch]
    object: str = "list"
    first_id: str | None = None
    last_id: str | None = None
    has_more: bool = False


_line_decoder = msgspec.json.Decoder(BatchRequestLine)


def decode_batch_line(line: bytes) -> BatchRequestLine:
    """One line without its end. Raises `InvalidRequest` that names the field; the caller knows the line's number."""
    try:
        decoded = _line_decoder.decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise invalid_json(error, line) from error
    if not decoded.custom_id:
        raise InvalidRequest("custom_id is empty; every line needs a name of its own.", param="custom_id")
    if decoded.method != "POST":
        raise InvalidRequest(f"method is {decoded.method!r:.20}; it must be POST.", param="method")
    return decoded
