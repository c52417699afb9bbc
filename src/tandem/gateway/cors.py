"""Browsers: which web pages may call the gateway, and read its answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler

_ALLOWED: Final = {
    "Access-Control-Allow-Methods": "GET, POST, DELETE, OPTIONS",
    "Access-Control-Allow-Headers": "Authorization, Content-Type, X-Request-Id, X-Session-Id",
    "Access-Control-Max-Age": "600",
}
_NO_CONTENT: Final = 204


def allow_origins(app: web.Application, origins: Sequence[str]) -> None:
    """Without origins nothing is added, and browsers keep other pages out by themselves."""
    if not origins:
        return
    allowed, allows_all = frozenset(origins), "*" in origins

    def is_allowed(origin: str | None) -> bool:
        return origin is not None and (allows_all or origin in allowed)

    @web.middleware
    async def preflight(request: web.Request, handler: Handler) -> web.StreamResponse:
        asks = request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers
        if asks and is_allowed(request.headers.get("Origin")):
            return web.Response(status=_NO_CONTENT, headers=_ALLOWED)
        return await handler(request)

    async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
        origin = request.headers.get("Origin")
        if origin is not None and is_allowed(origin):
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Vary"] = "Origin"
            response.headers["Access-Control-Expose-Headers"] = "X-Request-Id, X-Tandem-Request-Id, Retry-After"

    app.middlewares.insert(0, preflight)
    app.on_response_prepare.append(add_headers)
