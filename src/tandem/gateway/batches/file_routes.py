"""The routes under /v1/files, as OpenAI's."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial

from aiohttp import web

from tandem.config.gateway_store import BatchesConfig
from tandem.core.errors import NotFound
from tandem.gateway.batches.files import FileRecord, Folder, delete_file, file_object, find_file, list_files
from tandem.gateway.batches.upload import receive_file
from tandem.gateway.batches.wire import FileDeleted, FileList
from tandem.gateway.store.database import Database
from tandem.gateway.store.http import Authenticate, choice, json_response, path_parameter, text_parameter, whole_number
from tandem.gateway.store.wall import WallClock


@dataclass(frozen=True, slots=True)
class FileService:
    """What the handlers need. A tenant sees its own files only; another's are not found."""

    database: Database
    folder: Folder
    config: BatchesConfig
    wall: WallClock
    authenticate: Authenticate

    async def create(self, request: web.Request) -> web.Response:
        tenant = self.authenticate(request).tenant
        record = await receive_file(request, tenant, self.folder, self.database, self.config, self.wall)
        return json_response(file_object(record))

    async def list_all(self, request: web.Request) -> web.Response:
        tenant = self.authenticate(request).tenant
        limit = whole_number(request, "limit", 10_000, 1, 10_000)
        work = partial(
            list_files,
            tenant=tenant,
            now_s=self.wall.now(),
            purpose=text_parameter(request, "purpose"),
            after=text_parameter(request, "after"),
            limit=limit + 1,
            is_descending=choice(request, "order", "desc", ("asc", "desc")) == "desc",
        )
        found = [file_object(record) for record in await self.database.read(work)]
        page = found[:limit]
        ends = (page[0].id, page[-1].id) if page else (None, None)
        return json_response(FileList(data=page, first_id=ends[0], last_id=ends[1], has_more=len(found) > limit))

    async def retrieve(self, request: web.Request) -> web.Response:
        return json_response(file_object(await self._find(request)))

    async def content(self, request: web.Request) -> web.StreamResponse:
        record = await self._find(request)
        path = self.folder.path_of(record.id)
        if not await asyncio.to_thread(path.is_file):
            raise NotFound(f"The bytes of the file {record.id} are gone from the gateway's disk.", code="file_lost")
        disposition = f'attachment; filename="{record.filename.encode("ascii", "replace").decode()}"'
        headers = {"Content-Type": "application/octet-stream", "Content-Disposition": disposition}
        return web.FileResponse(path, headers=headers)

    async def delete(self, request: web.Request) -> web.Response:
        tenant, file_id = self.authenticate(request).tenant, path_parameter(request, "file_id")
        work = partial(delete_file, tenant=tenant, file_id=file_id, now_s=self.wall.now())
        if await self.database.write(work):
            await asyncio.to_thread(self.folder.remove, file_id)
        return json_response(FileDeleted(id=file_id))

    async def _find(self, request: web.Request) -> FileRecord:
        tenant, file_id = self.authenticate(request).tenant, path_parameter(request, "file_id")
        return await self.database.read(partial(find_file, tenant=tenant, file_id=file_id, now_s=self.wall.now()))


def file_routes(
    database: Database, folder: Folder, config: BatchesConfig, authenticate: Authenticate, wall: WallClock | None = None
) -> list[web.RouteDef]:
    """To be mounted on an application whose middleware shapes `TandemError`s."""
    service = FileService(database, folder, config, wall or WallClock(), authenticate)
    return [
        web.post("/v1/files", service.create),
        web.get("/v1/files", service.list_all),
        web.get("/v1/files/{file_id}", service.retrieve),
        web.get("/v1/files/{file_id}/content", service.content),
        web.delete("/v1/files/{file_id}", service.delete),
    ]
