"""The store's routes on a real port, with the official client in front and a scriptable engine behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.typedefs import Handler
from openai import AsyncOpenAI
from openai.types import Batch

from tandem.config.gateway_store import BatchesConfig, StoreConfig
from tandem.core.errors import TandemError
from tandem.gateway.context import Caller
from tandem.gateway.store.key_rows import KeyRules, create_key
from tandem.protocol.errors import encode_error
from tests.gateway.lines import Engine
from tests.gateway.whole_store import Store

FINAL = ("completed", "failed", "expired", "cancelled")


class Served:
    """A running store and clients for it."""

    def __init__(self, store: Store, url: str, token: str) -> None:
        self.store = store
        self.url = url
        self.openai = AsyncOpenAI(base_url=f"{url}/v1", api_key=token, max_retries=0)
        self.http = aiohttp.ClientSession(url, headers={"Authorization": f"Bearer {token}"})

    async def upload(self, content: bytes, name: str = "in.jsonl") -> str:
        return (await self.openai.files.create(file=(name, content), purpose="batch")).id

    async def batch(self, content: bytes, **settings: Any) -> Batch:
        file_id = await self.upload(content)
        fields = {"endpoint": "/v1/chat/completions", "completion_window": "24h"} | settings
        return await self.openai.batches.create(input_file_id=file_id, **fields)

    async def finished(self, batch: Batch, timeout_s: float = 30.0) -> Batch:
        async with asyncio.timeout(timeout_s):
            while (batch := await self.openai.batches.retrieve(batch.id)).status not in FINAL:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return batch

    async def lines(self, file_id: str | None) -> list[dict[str, Any]]:
        """Of an output or error file."""
        assert file_id is not None
        content = (await self.openai.files.content(file_id)).content
        return [json.loads(line) for line in content.splitlines()]

    async def close(self) -> None:
        await self.openai.close()
        await self.http.close()


@web.middleware
async def shape_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except TandemError as error:
        return web.Response(body=encode_error(error), status=error.status, content_type="application/json")


@asynccontextmanager
async def serving(
    address: str,
    config: StoreConfig,
    engine: Engine | None = None,
    batches: BatchesConfig | None = None,
    rules: KeyRules | None = None,
) -> AsyncIterator[Served]:
    """With one key, which the clients use."""
    store = Store(address, config, batches or BatchesConfig(poll_s=0.05))

    def authenticate(request: web.Request) -> Caller:
        return store.keys.caller(request.headers.get("Authorization", "").removeprefix("Bearer ") or None)

    await store.start(engine)
    token, _ = await store.database.write(lambda connection: create_key(connection, "n", rules or KeyRules(), 0.0))
    await store.keys.refresh()
    app = web.Application(middlewares=[shape_errors])
    app.add_routes(store.routes(authenticate))
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    served = Served(store, f"http://127.0.0.1:{runner.addresses[0][1]}", token)
    try:
        yield served
    finally:
        await served.close()
        await runner.cleanup()
        await store.close()


async def token_of(served: Served, rules: KeyRules) -> str:
    """One more key."""
    token, _ = await served.store.database.write(lambda connection: create_key(connection, "n2", rules, 0.0))
    await served.store.keys.refresh()
    return token
