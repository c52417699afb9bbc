"""`POST /v1/files`: a multipart body, streamed to disk as it comes; a file is never in memory as a whole."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import HttpProcessingError

from tandem.config.gateway_store import BatchesConfig
from tandem.core.errors import InvalidRequest, RequestTooLarge
from tandem.gateway.batches.files import FileRecord, Folder, Incoming, add_file, new_id
from tandem.gateway.store.database import Database
from tandem.gateway.store.wall import WallClock

PURPOSES: Final = ("batch",)
MAX_FIELD_BYTES: Final = 1024
MIN_KEEP_S: Final = 3600
MAX_KEEP_S: Final = 30 * 86_400
_CHUNK_BYTES: Final = 1 << 20
_BYTES_IN_MIB: Final = 1 << 20
_BYTES_IN_GIB: Final = 1 << 30


@dataclass(slots=True)
class _Form:
    """The parts so far; they come in any order."""

    fields: dict[str, str] = field(default_factory=dict)
    filename: str | None = None


async def receive_file(
    request: web.Request, tenant: str, folder: Folder, database: Database, config: BatchesConfig, wall: WallClock
) -> FileRecord:
    """On disk and in the database when it returns. Raises `InvalidRequest`, `RequestTooLarge`, `StorageFull`."""
    if request.content_type != "multipart/form-data":
        raise InvalidRequest("A file is uploaded as multipart/form-data with the parts file and purpose.", param="file")
    file_id, form = new_id(), _Form()
    async with _incoming(folder, file_id) as incoming:
        await _read_parts(request, form, incoming, int(config.max_file_mib * _BYTES_IN_MIB))
        keep_s = _check(form, config)
        await asyncio.to_thread(incoming.finish)
        record = FileRecord(
            id=file_id,
            tenant=tenant,
            purpose=form.fields["purpose"],
            filename=_clean_name(form.filename or "file"),
            size_bytes=incoming.num_bytes,
            created_us=wall.now_us(),
            expires_at=int(wall.now() + keep_s),
        )
        try:
            most = int(config.max_tenant_gib * _BYTES_IN_GIB)
            await database.write(partial(add_file, record=record, max_tenant_bytes=most))
        except Exception:
            await asyncio.to_thread(folder.remove, file_id)
            raise
    return record


@asynccontextmanager
async def _incoming(folder: Folder, file_id: str) -> AsyncIterator[Incoming]:
    incoming = await asyncio.to_thread(folder.create, file_id)
    try:
        yield incoming
    finally:
        await asyncio.shield(asyncio.to_thread(incoming.discard))


async def _read_parts(request: web.Request, form: _Form, incoming: Incoming, max_bytes: int) -> None:
    try:
        reader = await request.multipart()
        while (part := await reader.next()) is not None:
            if not isinstance(part, BodyPartReader):
                raise InvalidRequest("The upload has a part that is multipart itself.")
            if part.name == "file":
                form.filename = part.filename or "file"
                await _store(part, incoming, max_bytes)
            else:
                await _read_field(part, form)
    except (ValueError, AssertionError, HttpProcessingError) as error:
        raise InvalidRequest("The upload is no well-formed multipart/form-data.") from error


async def _store(part: BodyPartReader, incoming: Incoming, max_bytes: int) -> None:
    if incoming.num_bytes:
        raise InvalidRequest("The upload has two files; send one at a time.", param="file")
    chunk = bytearray()
    while not part.at_eof():
        chunk += await part.read_chunk()
        if incoming.num_bytes + len(chunk) > max_bytes:
            raise RequestTooLarge(f"The file is larger than the {max_bytes} bytes that are taken.", param="file")
        if len(chunk) >= _CHUNK_BYTES:
            await asyncio.to_thread(incoming.write, chunk)
            chunk = bytearray()
    await asyncio.to_thread(incoming.write, chunk)


async def _read_field(part: BodyPartReader, form: _Form) -> None:
    value = bytearray()
    while not part.at_eof():
        value += await part.read_chunk()
        if len(value) > MAX_FIELD_BYTES:
            raise InvalidRequest(f"The part {part.name!r:.60} is too long for a field.", param=part.name)
    form.fields[part.name or ""] = value.decode("utf-8", "replace")


def _check(form: _Form, config: BatchesConfig) -> float:
    """Seconds to keep it. Raises `InvalidRequest`."""
    if form.filename is None:
        raise InvalidRequest("file is required: a part of that name with the file's bytes.", param="file")
    purpose = form.fields.get("purpose")
    if purpose is None:
        raise InvalidRequest("purpose is required.", param="purpose")
    if purpose not in PURPOSES:
        raise InvalidRequest(f"purpose is {purpose!r:.40}; here it must be batch.", param="purpose")
    anchor, seconds = form.fields.get("expires_after[anchor]"), form.fields.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return config.keep_days * 86_400
    return check_keep_s(anchor, seconds)


def check_keep_s(anchor: str | None, seconds: str | int | None) -> int:
    """`expires_after`. Raises `InvalidRequest`."""
    if anchor != "created_at":
        raise InvalidRequest(f"expires_after.anchor is {anchor!r:.40}; it must be created_at.", param="expires_after")
    if not re.fullmatch(r"[0-9]{1,9}", str(seconds)) or not MIN_KEEP_S <= int(str(seconds)) <= MAX_KEEP_S:
        raise InvalidRequest(
            f"expires_after.seconds is {seconds!r:.40}; it must lie between {MIN_KEEP_S} and {MAX_KEEP_S}.",
            param="expires_after",
        )
    return int(str(seconds))


def _clean_name(name: str) -> str:
    """What a client called it, without a path and without what would be trouble in a header or a log."""
    base = name.replace("\\", "/").rpartition("/")[2]
    return re.sub(r"[^\w .()\[\]@+,=-]", "_", base)[:200] or "file"
