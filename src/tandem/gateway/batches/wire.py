"""What clients see of files and batches beyond `protocol.batch`: file objects, lists, and a batch with its usage."""

from __future__ import annotations

import msgspec

from tandem.protocol.batch import Batch, CreateBatchRequest


class FileObject(msgspec.Struct, kw_only=True):
    """A file. Times are Unix seconds. `status` is there because clients' types require it."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    object: str = "file"
    status: str = "processed"
    expires_at: int | msgspec.UnsetType = msgspec.UNSET


class FileList(msgspec.Struct, kw_only=True):
    """`GET /v1/files`."""

    data: list[FileObject]
    object: str = "list"
    first_id: str | None = None
    last_id: str | None = None
    has_more: bool = False


class FileDeleted(msgspec.Struct, kw_only=True):
    id: str
    object: str = "file"
    deleted: bool = True


class InputTokensDetails(msgspec.Struct, kw_only=True):
    cached_tokens: int = 0


class OutputTokensDetails(msgspec.Struct, kw_only=True):
    reasoning_tokens: int = 0


class BatchUsage(msgspec.Struct, kw_only=True):
    """Of all lines that were answered."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens_details: OutputTokensDetails = msgspec.field(default_factory=OutputTokensDetails)


class BatchObject(Batch, kw_only=True):
    """The batch object as OpenAI's newest clients know it."""

    model: str | None = None
    usage: BatchUsage | None = None


class BatchObjectList(msgspec.Struct, kw_only=True):
    """`GET /v1/batches`."""

    data: list[BatchObject]
    object: str = "list"
    first_id: str | None = None
    last_id: str | None = None
    has_more: bool = False


class ExpiresAfter(msgspec.Struct, kw_only=True):
    """When a file ends: seconds after it was made."""

    anchor: str
    seconds: int


class CreateBatch(CreateBatchRequest, kw_only=True):
    """`POST /v1/batches`, with what newer clients may add."""

    output_expires_after: ExpiresAfter | None = None
