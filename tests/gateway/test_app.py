"""The HTTP side: keys, headers, limits, browsers, metrics, the end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Final

import aiohttp
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families
from yarl import URL

from tandem.config.gateway_http import GatewayHttpConfig
from tandem.config.gateway_upstream import UpstreamConfig
from tandem.gateway.app import OPEN_ROUTES, authenticate
from tandem.gateway.context import Caller
from tandem.gateway.parsing import ParserConfig
from tests.gateway.fakes import Call, Served, engines, serving, well

CHAT: Final = "/v1/chat/completions"
BODY: Final = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
KEYS: Final = {
    "user-key-9": Caller(tenant="t", key_id="k", allowed_models=frozenset({"m"})),
    "other-key": Caller(tenant="t", key_id="o", allowed_models=frozenset({"else"})),
    "admin-key": Caller(tenant="a", key_id="a", is_admin=True),
}


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
        yield session


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def mine(request: web.Request) -> web.Response:
    return web.Response(text=authenticate(request).key_id)


async def talk(served: Served, data: bytes) -> bytes:
    """Bytes as they are, for what no client library would send."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(served.url.rsplit(":", 1)[1]))
    writer.write(data)
    got = await asyncio.wait_for(reader.read(1 << 16), 5)
    writer.close()
    return got


async def test_only_the_short_list_is_open(http: aiohttp.ClientSession) -> None:
    """sec-01: every route and method, wrong keys, and spellings of a path."""
    added = [web.get("/v1/added", mine), web.get("/tandem/added", mine)]
    async with engines(well) as (engine,), serving(engine, keys=KEYS, routes=added) as served:
        app = served.serving.runner.app
        for route in app.router.routes():
            path = route.resource.canonical.replace("{model:.+}", "m") if route.resource else "/"
            if path in OPEN_ROUTES:
                continue
            for headers in ({}, bearer("wrong"), {"X-Api-Key": "user-key-9"}, {"Authorization": "user-key-9"}):
                async with http.request(route.method, served.url + path, headers=headers) as response:
                    assert response.status == 401, (route.method, path, headers)
                    assert response.headers["WWW-Authenticate"] == "Bearer"
        for spelling in ("//v1/models", "/V1/models", "/v1%2Fmodels", "/v1/../v1/models", "/v1/models/"):
            async with http.get(URL(served.url + spelling, encoded=True)) as response:
                assert response.status in (401, 404), spelling
        for path in OPEN_ROUTES:
            assert (await http.get(served.url + path)).status == 200
        assert engine.calls == []
        assert served.ledger.rows == []
        async with http.get(served.url + "/v1/added", headers={"Authorization": "bearer user-key-9"}) as response:
            assert await response.text() == "k"


async def test_admin_routes_need_an_admins_key(http: aiohttp.ClientSession) -> None:
    async with serving(keys=KEYS, admin_routes=[web.get("/tandem/x", mine)]) as served:
        for key, status in (("user-key-9", 403), ("admin-key", 200), ("wrong", 401)):
            assert (await http.get(served.url + "/tandem/x", headers=bearer(key))).status == status


async def test_a_key_sees_and_uses_only_its_models(http: aiohttp.ClientSession) -> None:
    async with engines(well) as (engine,), serving(engine, keys=KEYS) as served:
        for key, status, models in (("user-key-9", 200, ["m"]), ("other-key", 403, [])):
            async with http.post(served.url + CHAT, json=BODY, headers=bearer(key)) as response:
                assert response.status == status
            async with http.get(served.url + "/v1/models", headers=bearer(key)) as response:
                assert [model["id"] for model in (await response.json())["data"]] == models


async def test_credentials_and_hop_by_hop_headers_stop_here(
    http: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    """gw-08: the engine sees the gateway's key only, the client never sees that, nor does a log."""

    async def echoes(call: Call) -> None:
        told = {"error": {"message": f"headers: {call.headers}", "type": "invalid_request_error"}}
        call.answer(told, 400)

    caplog.set_level("DEBUG")
    sent = {
        **bearer("user-key-9"), "X-Api-Key": "user-key-9", "Connection": "keep-alive, X-Foo", "X-Foo": "1",
        "Accept-Encoding": "br", "Cookie": "s=1", "X-Request-Id": "r-1", "X-Tandem-Priority": "-5",
        "X-Tandem-Cache-Salt": "another's",
    }  # fmt: skip
    async with engines(echoes) as (engine,), serving(engine, keys=KEYS, pool={"api_key": "up-secret-1"}) as served:
        async with http.post(served.url + CHAT, json=BODY | {"user": "x"}, headers=sent) as response:
            told = await response.text()
            assert response.status == 400
        [call] = engine.calls
        assert call.headers["authorization"] == "Bearer up-secret-1"
        assert call.headers["x-request-id"] == "r-1"
        assert call.headers["host"] == f"127.0.0.1:{engine.port}"
        assert int(call.headers["content-length"]) == len(call.body)
        unwanted = {"x-api-key", "connection", "x-foo", "cookie", "accept-encoding", "x-tandem-priority"}
        assert not unwanted & set(call.headers)
        assert "user-key-9" not in str(call.headers) + call.body.decode()
        assert "up-secret-1" not in told
        assert "up-secret-1" not in caplog.text
        assert "user-key-9" not in caplog.text + str(served.ledger.rows)


async def test_a_pools_cap_reaches_the_engine(http: aiohttp.ClientSession) -> None:
    async with engines(well) as (engine,), serving(engine, pool={"max_output_tokens": 9}) as served:
        for asked in ({}, {"max_tokens": 5}, {"max_tokens": 500}):
            await http.post(served.url + CHAT, json=BODY | asked)
        sent = [call.json.get("max_tokens", call.json.get("max_completion_tokens")) for call in engine.calls]
        assert sent == [9, 5, 9]


async def test_embeddings_and_completions_pass(http: aiohttp.ClientSession) -> None:
    async def embeds(call: Call) -> None:
        usage = {"prompt_tokens": 3, "total_tokens": 3}  # OpenAI's has no completion tokens
        call.answer({"object": "list", "data": [{"embedding": [0.5]}], "model": "m", "usage": usage})

    async with engines(embeds) as (engine,), serving(engine) as served:
        async with http.post(served.url + "/v1/embeddings", json={"model": "m", "input": "x"}) as response:
            assert (await response.json())["data"] == [{"embedding": [0.5]}]
        assert engine.calls[0].path == "/v1/embeddings"
        assert (await served.ledger.written(1))[0].output_tokens == 0


async def test_bodies_and_headers_have_limits(http: aiohttp.ClientSession) -> None:
    config = GatewayHttpConfig(max_body_mib=0.01, max_header_kib=1)
    async with engines(well) as (engine,), serving(engine, http=config) as served:
        async with http.post(served.url + CHAT, data=b"x" * 20_000) as response:
            assert response.status == 413
            assert (await response.json())["error"]["type"] == "invalid_request_error"
        got = await talk(served, b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 5000 + b"\r\n\r\n")
        assert b" 400 " in got.split(b"\r\n")[0]
        assert b'"error"' in got
        assert b" 400 " in (await talk(served, b"hello\r\n\r\n")).split(b"\r\n")[0]
        assert engine.calls == []


async def test_a_body_that_stops_coming_is_refused() -> None:
    async with serving(http=GatewayHttpConfig(body_timeout_s=0.1)) as served:
        got = await talk(served, b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{" % CHAT.encode())
        assert got.startswith(b"HTTP/1.1 408")


async def test_errors_have_openais_shape(http: aiohttp.ClientSession) -> None:
    async with serving() as served:
        for method, path, status in (("GET", "/nowhere", 404), ("GET", CHAT, 405), ("POST", CHAT, 400)):
            async with http.request(method, served.url + path, data=b"{") as response:
                assert response.status == status
                assert set((await response.json())["error"]) == {"message", "type", "param", "code"}


async def test_browsers_are_let_in_only_where_that_was_said(http: aiohttp.ClientSession) -> None:
    asks = {"Origin": "https://page", "Access-Control-Request-Method": "POST"}
    config = GatewayHttpConfig(cors_origins=("https://page",))
    async with engines(well) as (engine,), serving(engine, keys=KEYS, http=config) as served:
        async with http.options(served.url + CHAT, headers=asks) as response:
            assert (response.status, response.headers["Access-Control-Allow-Origin"]) == (204, "https://page")
        async with http.options(served.url + CHAT, headers=asks | {"Origin": "https://other"}) as response:
            assert "Access-Control-Allow-Origin" not in response.headers
        headers = bearer("user-key-9") | {"Origin": "https://page"}
        for stream in (False, True):
            async with http.post(served.url + CHAT, json=BODY | {"stream": stream}, headers=headers) as response:
                assert response.headers["Access-Control-Allow-Origin"] == "https://page"
    async with serving() as served, http.options(served.url + CHAT, headers=asks) as response:
        assert "Access-Control-Allow-Origin" not in response.headers


async def samples(http: aiohttp.ClientSession, served: Served) -> dict[tuple[str, str], float]:
    """(name, sorted labels) → value."""
    async with http.get(served.url + "/metrics") as response:
        families = text_string_to_metric_families(await response.text())
        return {
            (sample.name, ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()) if k != "le")): sample.value
            for family in families
            for sample in family.samples
            if sample.labels.get("le") in (None, "+Inf")
        }


async def test_every_request_is_in_one_counter(http: aiohttp.ClientSession) -> None:
    """m-02, m-03: plain answers have no time to first token, and clients can't invent labels."""
    async with engines(well) as (engine,), serving(engine) as served:
        for _ in range(2):
            await (await http.post(served.url + CHAT, json=BODY)).read()
            await (await http.post(served.url + CHAT, json=BODY | {"stream": True})).read()
        for model in ("invented-1", "invented-2"):
            assert (await http.post(served.url + CHAT, json=BODY | {"model": model})).status == 404
        seen = await samples(http, served)
        at = "class=interactive,model=m,pool=p"
        assert seen["tandem_gateway_requests_total", f"{at},status=200"] == 4
        assert seen["tandem_gateway_requests_total", "class=-,model=-,pool=-,status=404"] == 2
        assert seen["tandem_gateway_time_to_first_token_seconds_count", at] == 2
        assert seen["tandem_gateway_request_duration_seconds_count", at] == 4
        assert seen["tandem_gateway_prompt_tokens_total", at] == 80
        assert seen["tandem_gateway_requests_in_flight", "class=interactive"] == 0
        assert not any("invented" in labels for _, labels in seen)


async def test_time_to_first_token_is_the_first_contents(http: aiohttp.ClientSession) -> None:
    """m-03: not the role's, not the last chunk's."""
    go = asyncio.Event()

    async def waits(call: Call) -> None:
        call.head()
        call.delta("", role="assistant")
        await asyncio.sleep(0.2)
        call.delta("a")
        await go.wait()
        call.delta(finish="stop")
        call.event("[DONE]")
        call.end()

    async with engines(waits) as (engine,), serving(engine) as served:
        async with http.post(served.url + CHAT, json=BODY | {"stream": True}) as response:
            await response.content.readany()
            await asyncio.sleep(0.3)
            go.set()
            await response.read()
        seen = await samples(http, served)
        at = "class=interactive,model=m,pool=p"
        ttft_s = seen["tandem_gateway_time_to_first_token_seconds_sum", at]
        total_s = seen["tandem_gateway_request_duration_seconds_sum", at]
        assert 0.2 <= ttft_s < 0.45
        assert total_s >= ttft_s + 0.3


async def test_the_end_waits_for_what_runs_and_takes_nothing_new(http: aiohttp.ClientSession) -> None:
    go = asyncio.Event()

    async def waits(call: Call) -> None:
        await go.wait()
        await well(call)

    async with engines(waits) as (engine,), serving(engine) as served:
        running = asyncio.ensure_future(http.post(served.url + CHAT, json=BODY | {"stream": True}))
        await engine.has_arrived()
        kept = await http.get(served.url + "/health")
        closing = asyncio.ensure_future(served.serving.close(5.0))
        await asyncio.sleep(0.05)
        assert kept.status == 200
        assert not closing.done()
        with pytest.raises(aiohttp.ClientConnectorError):
            async with aiohttp.ClientSession() as other:
                await other.get(served.url + "/health")
        go.set()
        body = await (await running).read()
        assert body.endswith(b"data: [DONE]\n\n")
        await asyncio.wait_for(closing, 5)


async def test_who_does_not_end_in_time_is_cut_off(http: aiohttp.ClientSession) -> None:
    async def silent(call: Call) -> None:
        await call.silence()

    async with engines(silent) as (engine,), serving(engine) as served:
        running = asyncio.ensure_future(http.post(served.url + CHAT, json=BODY))
        await engine.has_arrived()
        await asyncio.wait_for(served.serving.close(0.1), 5)
        await engine.idle()
        with pytest.raises(aiohttp.ClientError):
            await running
        assert [row.status for row in served.ledger.rows] == ["aborted"]


async def test_a_request_leaves_one_line_with_its_id_and_no_word_of_its_prompt(
    http: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tandem.gateway.accounting")
    body = {"model": "m", "messages": [{"role": "user", "content": "a secret of mine"}]}
    async with engines(well) as (engine,), serving(engine) as served:
        await (await http.post(served.url + CHAT, json=body)).read()
    [record] = [record for record in caplog.records if record.name == "tandem.gateway.accounting"]
    assert vars(record)["output_tokens"] == 3
    assert "secret" not in str(vars(record))
    assert "hello" not in str(vars(record))


async def test_a_new_configuration_holds_from_the_next_request(http: aiohttp.ClientSession) -> None:
    go = asyncio.Event()

    async def waits(call: Call) -> None:
        await go.wait()
        await well(call)

    async with engines(waits) as (engine,), serving(engine) as served:
        running = asyncio.ensure_future(http.post(served.url + CHAT, json=BODY))
        await engine.has_arrived()
        served.gateway.reconfigure(
            parser=ParserConfig(max_output_tokens={"interactive": 4, "batch": 4}),
            upstream=UpstreamConfig(plain_timeout_s=0.2, max_attempts=1),
        )
        engine.script = silent
        assert (await http.post(served.url + CHAT, json=BODY)).status == 504
        go.set()
        assert (await running).status == 200
        caps = [call.json.get("max_completion_tokens", call.json.get("max_tokens")) for call in engine.calls]
        assert caps == [None, 4]


async def silent(call: Call) -> None:
    await call.silence()


async def test_a_batchs_line_is_an_answer_whatever_happens() -> None:
    async with engines(well) as (engine,), serving(engine, upstream=UpstreamConfig(max_attempts=1)) as served:
        good = await served.gateway.complete(CHAT, json.dumps(BODY).encode(), Caller())
        bad = await served.gateway.complete(CHAT, b"{", Caller())
        streamed = await served.gateway.complete(CHAT, json.dumps(BODY | {"stream": True}).encode(), Caller())
        assert (good.status, bad.status, streamed.status) == (200, 400, 400)
        assert good.headers["X-Tandem-Class"] == "batch"
        assert [row.service_class for row in served.ledger.rows] == ["batch"]
