"""A front served on a loopback port around stand-ins, and clients that ask it."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from openai import AsyncOpenAI

from tandem.config.engine import EngineConfig
from tandem.config.server import ServerConfig
from tandem.engine.front.app import create_app
from tandem.engine.front.front import FRONT, Front
from tandem.engine.front.serving import serve
from tandem.protocol.sse import DONE_DATA, SseParser
from tests.engine.front.fakes import FakeEngine, FakeText


class Running:
    """A served front, and clients for it."""

    def __init__(self, address: str, front: Front, text: FakeText, api_key: str | None) -> None:
        self.address = address
        self.front = front
        self.text = text
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self.http = aiohttp.ClientSession(address, headers=headers)
        self.openai = AsyncOpenAI(base_url=f"{address}/v1", api_key=api_key or "none", max_retries=0)

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        """Status and parsed JSON, by a strict parser."""
        async with self.http.post(path, data=encode(body), headers=headers) as response:
            assert response.content_type == "application/json", await response.text()
            return response.status, strict_json(await response.text())

    async def get(self, path: str) -> tuple[int, str]:
        async with self.http.get(path) as response:
            return response.status, await response.text()

    async def metrics(self) -> dict[str, float]:
        """Series, without the model label → value."""
        lines = (await self.get("/metrics"))[1].splitlines()
        series = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {
            name.replace('model="m",', "").replace(',model="m"', "").replace('{model="m"}', ""): float(value)
            for name, value in series
        }


def encode(body: Any) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body).encode()


def strict_json(text: str) -> Any:
    """Parsed JSON; NaN and infinities are errors."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


@asynccontextmanager
async def running(
    engine: FakeEngine, *, config: ServerConfig | None = None, text: FakeText | None = None, **engine_settings: Any
) -> AsyncGenerator[Running, None]:
    """A front on a free port of the loopback interface."""
    config = config or ServerConfig(port=0)
    text = text or FakeText()
    app = create_app(engine, text, config, EngineConfig(served_model_name="m", **engine_settings))
    serving = await serve(app, config, close_timeout_s=0.2)
    server = Running(serving.address, app[FRONT], text, config.api_key)
    try:
        yield server
    finally:
        await server.http.close()
        await server.openai.close()
        await serving.close()


async def stream_events(server: Running, path: str, body: Any) -> list[Any]:
    """All `data` of a stream, parsed; `[DONE]` stays text."""
    events: list[Any] = []
    parser = SseParser()
    async with server.http.post(path, data=encode(body)) as response:
        assert response.status == 200, await response.text()
        assert response.content_type == "text/event-stream"
        async for chunk in response.content.iter_any():
            events += [
                e.data.decode() if e.data == DONE_DATA else strict_json(e.data.decode()) for e in parser.feed(chunk)
            ]
    assert parser.is_between_events
    return events
