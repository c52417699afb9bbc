"""The routes under /v1/batches, as OpenAI's. They write what is asked for; the runner does it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec
from aiohttp import web

from tandem.config.gateway_store import BatchesConfig
from tandem.core.errors import InvalidRequest
from tandem.gateway.batches.records import NewBatch, cancel_batch, create_batch, find_batch, list_batches
from tandem.gateway.batches.upload import check_keep_s
from tandem.gateway.batches.wire import BatchObjectList, CreateBatch
from tandem.gateway.context import Caller
from tandem.gateway.store.database import Database
from tandem.gateway.store.http import Authenticate, json_response, path_parameter, text_parameter, whole_number
from tandem.gateway.store.wall import WallClock
from tandem.protocol.json_errors import invalid_json

MAX_METADATA: Final = 16
MAX_METADATA_KEY_CHARS: Final = 64
MAX_METADATA_VALUE_CHARS: Final = 512
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_decoder: Final = msgspec.json.Decoder(CreateBatch)


@dataclass(frozen=True, slots=True)
class BatchService:
    """What the handlers need. A tenant sees its own batches only; another's are not found."""

    database: Database
    config: BatchesConfig
    wall: WallClock
    authenticate: Authenticate
    changed: Callable[[], None]

    async def create(self, request: web.Request) -> web.Response:
        new = read_new_batch(await request.read(), self.authenticate(request), self.config)
        made = await self.database.write(partial(create_batch, new=new, now_us=self.wall.now_us()))
        self.changed()
        return json_response(made)

    async def retrieve(self, request: web.Request) -> web.Response:
        tenant, batch_id = self.authenticate(request).tenant, path_parameter(request, "batch_id")
        return json_response(await self.database.read(partial(find_batch, tenant=tenant, batch_id=batch_id)))

    async def list_all(self, request: web.Request) -> web.Response:
        tenant = self.authenticate(request).tenant
        limit, after = whole_number(request, "limit", 20, 1, 100), text_parameter(request, "after")
        found = await self.database.read(partial(list_batches, tenant=tenant, after=after, limit=limit + 1))
        page = found[:limit]
        ends = (page[0].id, page[-1].id) if page else (None, None)
        more = len(found) > limit
        return json_response(BatchObjectList(data=page, first_id=ends[0], last_id=ends[1], has_more=more))

    async def cancel(self, request: web.Request) -> web.Response:
        tenant, batch_id = self.authenticate(request).tenant, path_parameter(request, "batch_id")
        work = partial(cancel_batch, tenant=tenant, batch_id=batch_id, now_s=self.wall.now())
        cancelled = await self.database.write(work)
        self.changed()
        return json_response(cancelled)


def batch_routes(
    database: Database,
    config: BatchesConfig,
    authenticate: Authenticate,
    changed: Callable[[], None] = lambda: None,
    wall: WallClock | None = None,
) -> list[web.RouteDef]:
    """`changed`: the runner's `notify`. To be mounted on an application whose middleware shapes `TandemError`s."""
    service = BatchService(database, config, wall or WallClock(), authenticate, changed)
    return [
        web.post("/v1/batches", service.create),
        web.get("/v1/batches", service.list_all),
        web.get("/v1/batches/{batch_id}", service.retrieve),
        web.post("/v1/batches/{batch_id}/cancel", service.cancel),
    ]


def read_new_batch(body: bytes, caller: Caller, config: BatchesConfig) -> NewBatch:
    """Raises `InvalidRequest` naming the field."""
    try:
        asked = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise invalid_json(error, body) from error
    if not asked.input_file_id.isprintable():
        raise InvalidRequest("input_file_id has characters that no id has.", param="input_file_id")
    if asked.endpoint not in config.endpoints:
        allowed = ", ".join(config.endpoints)
        raise InvalidRequest(f"endpoint is {asked.endpoint!r:.80}; it must be one of {allowed}.", param="endpoint")
    _check_metadata(asked.metadata)
    keep = asked.output_expires_after
    return NewBatch(
        tenant=caller.tenant,
        key_id=caller.key_id,
        endpoint=asked.endpoint,
        input_file_id=asked.input_file_id,
        completion_window=asked.completion_window,
        window_s=_window_s(asked.completion_window, config.max_window_h),
        metadata=asked.metadata,
        output_keep_s=None if keep is None else check_keep_s(keep.anchor, keep.seconds),
    )


def _window_s(window: str, max_window_h: float) -> int:
    """OpenAI knows 24h only; here any whole number of seconds, minutes, hours or days will do."""
    match = re.fullmatch(r"([0-9]{1,6})([smhd])", window)
    seconds = int(match[1]) * _SECONDS[match[2]] if match else 0
    if not 1 <= seconds <= max_window_h * 3600:
        raise InvalidRequest(
            f"completion_window is {window!r:.40}; it must be a whole number with s, m, h or d after it, such as 24h, "
            f"and at most {max_window_h:g}h.",
            param="completion_window",
        )
    return seconds


def _check_metadata(metadata: dict[str, str] | None) -> None:
    for key, value in (metadata or {}).items():
        if len(key) > MAX_METADATA_KEY_CHARS or len(value) > MAX_METADATA_VALUE_CHARS:
            raise InvalidRequest(
                f"metadata has a key longer than {MAX_METADATA_KEY_CHARS} characters or a value longer than "
                f"{MAX_METADATA_VALUE_CHARS}.",
                param="metadata",
            )
    if len(metadata or {}) > MAX_METADATA:
        raise InvalidRequest(f"metadata has {len(metadata or {})} keys; at most {MAX_METADATA}.", param="metadata")
