"""Around every handler: a request id, one log line, errors in OpenAI's shape, and the API key.

The key is asked for unless the route that *matched* is on a short list. The path itself is never looked at, so there is
no spelling of it that opens anything, and a route added later is closed until somebody lists it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from tandem.core.errors import ConfigError, EngineFailed, TandemError, Unauthorized
from tandem.engine.front.front import FRONT
from tandem.engine.front.responses import error_response, http_error_response
from tandem.observability import logs
from tandem.protocol import headers as names

OPEN_ROUTES: Final = frozenset({"/health", "/ready"})
"""For load balancers and orchestrators, which have no key. They say whether the engine lives, and if not, why."""
CLIENT_CLOSED: Final = 499
"""nginx's status for a client that left; only ever logged."""
_QUIET_ROUTES: Final = OPEN_ROUTES | {"/metrics", "/tandem/state", "/tandem/kv-events"}
_log = logging.getLogger(__name__)


@web.middleware
async def identify(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Names the request in logs and in its answer, counts it as open, and logs how it ended."""
    front = request.app[FRONT]
    request_id = names.clean_request_id(request.headers.get(names.REQUEST_ID)) or f"req-{secrets.token_hex(12)}"
    logs.request_id.set(request_id)
    started_s, status = front.clock.now(), CLIENT_CLOSED
    try:
        with front.open_request():
            response = await handler(request)
        status = response.status
        return response
    finally:
        route = _route(request)
        level = logging.DEBUG if route in _QUIET_ROUTES else logging.INFO
        _log.log(level, "%s %s %d %.3fs", request.method, route, status, front.clock.now() - started_s)


async def add_request_id(request: web.Request, response: web.StreamResponse) -> None:
    """A signal handler: runs before headers go out, those of streams too. Each request has a context of its own."""
    if (request_id := logs.request_id.get()) is not None:
        response.headers[names.REQUEST_ID] = request_id


@web.middleware
async def shape_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every error that is raised before an answer began becomes JSON with its status."""
    try:
        return await handler(request)
    except TandemError as error:
        return error_response(error)
    except web.HTTPException as error:
        return http_error_response(error, request)
    except (ConnectionError, asyncio.CancelledError):
        raise
    except Exception:
        _log.exception("a request failed because of a bug")
        return error_response(EngineFailed("The server failed on this request. Its log says why."))


def require_key(api_key: str) -> Middleware:
    """Closed by default. The digests of both keys are compared, in constant time whatever their lengths."""
    if not api_key:
        raise ConfigError("api_key is empty, which would let nobody in; give a key, or leave it out for none.")
    wanted = _digest(api_key)

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if _route(request) not in OPEN_ROUTES:
            scheme, _, given = request.headers.get("Authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(_digest(given), wanted):
                request.app[FRONT].metrics.refused("unauthorized")
                known = "The API key is wrong" if given else "An API key is needed"
                raise Unauthorized(f"{known}: send it as 'Authorization: Bearer <key>'.")
        return await handler(request)

    return check


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _route(request: web.Request) -> str:
    """The pattern that matched, never the path as sent; "unmatched" for a wrong path or a wrong method."""
    resource = request.match_info.route.resource
    return "unmatched" if resource is None else resource.canonical
