"""With a key set, only /health and /ready are open, however a path is spelled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from tandem.config.engine import EngineConfig
from tandem.config.server import ServerConfig
from tandem.core.errors import ConfigError
from tandem.engine.front.app import create_app
from tandem.engine.front.middleware import OPEN_ROUTES
from tandem.engine.front.serving import serve
from tests.engine.front.fakes import FakeEngine, FakeText, say
from tests.engine.front.served import Running, running, strict_json

KEY = "test-Key-ü"
LOCKED = ServerConfig(port=0, api_key=KEY)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


WRONG_HEADERS: list[dict[str, str]] = [
    {},
    bearer("wrong"),
    bearer(KEY.upper()),
    bearer(f"x {KEY}"),
    bearer(KEY + "x"),
    bearer(""),
    {"Authorization": KEY},
    {"Authorization": f"Basic {KEY}"},
    {"X-Api-Key": KEY},
    {"api-key": KEY},
]


async def ask(server: Running, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
    """One raw request: no client tidies up the path."""
    host, port = server.address.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    lines = [f"{method} {path} HTTP/1.1", "Host: x", "Connection: close", "Content-Length: 2"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n{}")
    answer = (await asyncio.wait_for(reader.read(), 5)).decode()
    writer.close()
    return int(answer.split(" ", 2)[1]), answer


async def test_every_route_and_method_is_closed() -> None:
    engine = FakeEngine(say(b"a"))
    async with running(engine, config=LOCKED) as server:
        app = create_app(engine, FakeText(), LOCKED, EngineConfig(served_model_name="m"))
        routes = [(route.method, route.resource.canonical) for route in app.router.routes() if route.resource]
        assert len(routes) >= 11
        for method, path in routes:
            for headers in WRONG_HEADERS:
                status, answer = await ask(server, method, path.replace("{model}", "m"), headers)
                if path in OPEN_ROUTES:
                    assert status == 200
                else:
                    assert status == 401, (method, path, headers)
                    assert "WWW-Authenticate: Bearer" in answer
                    assert method == "HEAD" or '"code":"invalid_api_key"' in answer
        assert server.text.num_encoded == 0
    assert engine.requests == []


@pytest.mark.parametrize(
    "path",
    [
        "//v1/models", "/V1/models", "/v1/../v1/models", "/v1%2Fmodels", "/v1/models/", "/health/../v1/models",
        "/health/v1/models", "/health%2f..%2fv1/models", "/health;/v1/models", "/ready/../metrics", "/./metrics",
        "http://x/metrics", "/metrics?x=/health", "/metrics#/health", "/health/../metrics", "//health/../metrics",
        "/prefix/v1/models", "/health\\..\\metrics",
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST"])
async def test_no_spelling_opens_anything(path: str, method: str) -> None:
    async with running(FakeEngine(say(b"a")), config=LOCKED) as server:
        status, answer = await ask(server, method, path, {})
    assert status in (400, 401, 404), answer


async def test_the_right_key_opens() -> None:
    async with running(FakeEngine(say(b"a")), config=LOCKED) as server:
        assert (await ask(server, "GET", "/v1/models", bearer(KEY)))[0] == 200
        assert (await ask(server, "GET", "/v1/models", {"authorization": f"bearer {KEY}"}))[0] == 200
        assert (await ask(server, "GET", "/v1/nope", bearer(KEY)))[0] == 404
        assert (await ask(server, "OPTIONS", "/health", {}))[0] == 401


async def test_a_new_route_is_closed_by_default() -> None:
    async def new(request: web.Request) -> web.Response:
        return web.Response(text="open!")

    app = create_app(FakeEngine(say(b"a")), FakeText(), LOCKED, EngineConfig(served_model_name="m"))
    app.router.add_get("/invocations", new)
    serving = await serve(app, LOCKED)
    server: Any = type("Server", (), {"address": serving.address})
    status, _ = await ask(server, "GET", "/invocations", {})
    await serving.close()
    assert status == 401


async def test_refusals_are_counted_and_have_openais_shape() -> None:
    async with running(FakeEngine(say(b"a")), config=LOCKED) as server:
        async with server.http.get("/v1/models", headers=bearer("wrong")) as response:
            error = strict_json(await response.text())["error"]
        metrics = await server.metrics()
    assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
    assert KEY not in str(error)
    assert metrics['tandem_requests_refused_total{reason="unauthorized"}'] == 1


def test_an_empty_key_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="api_key"):
        create_app(FakeEngine(say(b"a")), FakeText(), ServerConfig(api_key=""), EngineConfig())


async def test_without_a_key_all_is_open() -> None:
    async with running(FakeEngine(say(b"a"))) as server:
        assert (await server.get("/v1/models"))[0] == 200
