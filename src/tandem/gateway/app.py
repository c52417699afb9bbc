"""The gateway as an aiohttp application: its routes, and what is wrapped around them.

Every route but the two of `OPEN_ROUTES` asks for a key, by the route that *matched*: there is no spelling of a path
that opens anything, and a route added later is closed until somebody lists it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from contextvars import ContextVar
from typing import Final

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import generate_latest

from tandem.core.errors import EngineFailed, NotFound, RequestTimeout, TandemError, Unavailable
from tandem.gateway.client_stream import AiohttpStream
from tandem.gateway.context import Caller, Endpoint
from tandem.gateway.cors import allow_origins
from tandem.gateway.gateway import Gateway, new_request_id
from tandem.gateway.parsing import Arrival
from tandem.gateway.responses import answer_response, error_response, http_error_response
from tandem.gateway.store.http import require_admin
from tandem.observability import logs
from tandem.observability.metrics import CONTENT_TYPE
from tandem.protocol import headers as names
from tandem.protocol.models import Model, ModelList

GATEWAY: Final = web.AppKey("gateway", Gateway)
_ADMIN_PATHS: Final = web.AppKey("admin_paths", set)
OPEN_ROUTES: Final = frozenset({"/health", "/ready"})
"""For load balancers and orchestrators, which have no key."""
SESSION: Final = "X-Session-Id"
_BYTES_IN_MIB: Final = 1 << 20
_caller: ContextVar[Caller] = ContextVar("caller")
"""Set by the guard before any handler runs; a connection's requests run one after another in one context."""
_returned_id: ContextVar[str | None] = ContextVar("returned_id", default=None)
"""What `X-Request-Id` says in an error's answer."""
_log = logging.getLogger(__name__)


def make_app(
    gateway: Gateway, routes: Iterable[web.RouteDef] = (), admin_routes: Iterable[web.RouteDef] = ()
) -> web.Application:
    """`routes`: other parts', which need a key as ours do. `admin_routes`: need an admin's."""
    config = gateway.http_config
    app = web.Application(middlewares=[_guard], client_max_size=int(config.max_body_mib * _BYTES_IN_MIB))
    app[GATEWAY] = gateway
    app.cleanup_ctx.append(_run_gateway)
    allow_origins(app, config.cors_origins)
    app.add_routes([
        web.post("/v1/chat/completions", chat_completions),
        web.post("/v1/completions", completions),
        web.post("/v1/embeddings", embeddings),
        web.get("/v1/models", list_models),
        web.get("/v1/models/{model:.+}", get_model),
        web.get("/health", health),
        web.get("/ready", ready),
        web.get("/metrics", metrics),
    ])  # fmt: skip
    app.add_routes(routes)
    app[_ADMIN_PATHS] = {route.resource.canonical for route in app.add_routes(admin_routes) if route.resource}
    return app


def authenticate(request: web.Request) -> Caller:
    """Whose request it is; already known to the guard. What other parts' handlers call."""
    return _caller.get()


async def _run_gateway(app: web.Application) -> AsyncIterator[None]:
    await app[GATEWAY].start()
    yield
    await app[GATEWAY].close()


@web.middleware
async def _guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Around every handler: who calls, and errors in OpenAI's shape."""
    gateway = request.app[GATEWAY]
    _returned_id.set(None)
    try:
        _admit(gateway, request)
        return await handler(request)
    except TandemError as error:
        gateway.metrics.refused(error.status)
        return _with_id(error_response(error))
    except web.HTTPException as error:
        return http_error_response(error, request)
    except (ConnectionError, asyncio.CancelledError):
        raise
    except Exception:
        _log.exception("a request failed because of a bug")
        return _with_id(error_response(EngineFailed("The gateway failed on this request. Its log says why.")))


def _admit(gateway: Gateway, request: web.Request) -> None:
    resource = request.match_info.route.resource
    path = "" if resource is None else resource.canonical
    if path in OPEN_ROUTES:
        return
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    caller = gateway.keys.caller(token.strip() if scheme.lower() == "bearer" and token else None)
    if path in request.app[_ADMIN_PATHS]:
        require_admin(caller)
    _caller.set(caller)


def _with_id(response: web.Response) -> web.Response:
    if (request_id := _returned_id.get()) is not None:
        response.headers[names.REQUEST_ID] = request_id
    return response


# The OpenAI surface.


async def chat_completions(request: web.Request) -> web.StreamResponse:
    return await _generate(request, "/v1/chat/completions")


async def completions(request: web.Request) -> web.StreamResponse:
    return await _generate(request, "/v1/completions")


async def embeddings(request: web.Request) -> web.StreamResponse:
    return await _generate(request, "/v1/embeddings")


async def _generate(request: web.Request, endpoint: Endpoint) -> web.StreamResponse:
    gateway = request.app[GATEWAY]
    arrival = await _arrival(gateway, request, endpoint)
    client = AiohttpStream(request, gateway.parts.upstream_config.client_buffer_kib << 10)
    try:
        answer = await gateway.proxy.handle(arrival, authenticate(request), client)
    except TandemError as error:  # the proxy has counted it
        return _with_id(error_response(error))
    if answer is not None:
        return answer_response(answer)
    assert client.response is not None, "streamed"
    return client.response


async def _arrival(gateway: Gateway, request: web.Request, endpoint: Endpoint) -> Arrival:
    request_id = new_request_id()
    client_id = names.clean_request_id(request.headers.get(names.REQUEST_ID))
    logs.request_id.set(request_id)
    _returned_id.set(client_id or request_id)
    if gateway.is_draining:
        raise Unavailable("The gateway is shutting down; send the request again.")
    return Arrival(endpoint, await _body(gateway, request), request_id, client_id, request.headers.get(SESSION))


async def _body(gateway: Gateway, request: web.Request) -> bytes:
    if request.content.is_eof():
        return await request.read()
    timeout_s = gateway.http_config.body_timeout_s
    try:
        async with asyncio.timeout(timeout_s):
            return await request.read()
    except TimeoutError:
        raise RequestTimeout(f"The body did not come within {timeout_s:g} s.") from None


async def list_models(request: web.Request) -> web.Response:
    gateway, caller = request.app[GATEWAY], authenticate(request)
    return _json(ModelList(data=[_model(gateway, name) for name in gateway.pools.aliases() if _may_use(caller, name)]))


async def get_model(request: web.Request) -> web.Response:
    gateway, name = request.app[GATEWAY], request.match_info["model"]
    if name not in gateway.pools.aliases() or not _may_use(authenticate(request), name):
        raise NotFound(f"There is no model {name!r:.80}.", param="model", code="model_not_found")
    return _json(_model(gateway, name))


def _model(gateway: Gateway, name: str) -> Model:
    return Model(id=name, created=gateway.started_unix_s)


def _may_use(caller: Caller, model: str) -> bool:
    return caller.allowed_models is None or model in caller.allowed_models


# Operations.


async def health(request: web.Request) -> web.Response:
    """The process lives and its event loop turns. Replicas don't matter: a gateway with none is what wakes one."""
    return web.json_response({"status": "ok"})


async def ready(request: web.Request) -> web.Response:
    """Takes new requests."""
    if request.app[GATEWAY].is_draining:
        raise Unavailable("The gateway is shutting down.")
    return web.json_response({"status": "ok"})


async def metrics(request: web.Request) -> web.Response:
    body = generate_latest(request.app[GATEWAY].registry)
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})


def _json(body: msgspec.Struct) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), content_type="application/json")
