"""The application on a port: TLS, limits on headers, several processes on one port, and an end that drops nobody.

A handler is cancelled when its client leaves: that is what reaches the engine as an abort, whatever the handler waits
for. aiohttp's plain-text answer to malformed HTTP is replaced by OpenAI's shape.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import ssl
from dataclasses import dataclass
from typing import Final, cast

from aiohttp import web

from tandem.config.gateway_http import GatewayHttpConfig
from tandem.core.errors import ConfigError
from tandem.gateway.app import GATEWAY
from tandem.gateway.responses import status_error_response

_BACKLOG: Final = 4096
_log = logging.getLogger(__name__)


class _Connection(web.RequestHandler):
    """One client connection."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Called for what is not HTTP, and for what a handler let through. Nothing of the request is logged."""
        if request.writer.output_size > 0 or isinstance(exc, ConnectionError):
            raise ConnectionError("the answer has begun; nothing else can be said on this connection")
        _log.debug("HTTP error %d: %s", status, type(exc).__name__)
        response = status_error_response(status)
        response.force_close()
        return response


@dataclass(slots=True)
class Serving:
    """A listening gateway. `close` ends it."""

    runner: web.AppRunner
    listener: asyncio.Server
    address: str
    """`http://host:port`."""

    async def close(self, timeout_s: float | None = None) -> None:
        """Take no more connections, let running requests finish within the time, then drop the rest."""
        gateway = self.runner.app[GATEWAY]
        self.listener.close()
        limit_s = gateway.http_config.shutdown_timeout_s if timeout_s is None else timeout_s
        if not await gateway.drain(limit_s):
            _log.warning("%d requests did not end within %g s", gateway.proxy.watch.num_open, limit_s)
        await self.runner.cleanup()


async def serve(app: web.Application, host: str, port: int, *, reuse_port: bool = False) -> Serving:
    """Listen. Raises `ConfigError` when the address can't be had. `reuse_port`: other processes listen there too."""
    config = app[GATEWAY].http_config
    tls = make_tls(config)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.5, access_log=None)
    await runner.setup()
    loop, manager = asyncio.get_running_loop(), runner.server
    assert manager is not None, "the runner is set up"
    max_header = config.max_header_kib << 10

    def connect() -> _Connection:
        none = cast("logging.Logger", None)  # None is off, says aiohttp
        return _Connection(manager, loop=loop, access_log=none, max_line_size=max_header, max_field_size=max_header)

    try:
        listener = await loop.create_server(
            connect, host, port, backlog=_BACKLOG, ssl=tls, reuse_port=reuse_port or None
        )
    except OSError as error:
        await runner.cleanup()
        raise ConfigError(f"can't listen on {host}:{port}: {error.strerror or error}.") from error
    gc.collect()
    gc.freeze()  # what is there now stays: full collections needn't look at it again and again
    bound_host, bound_port = listener.sockets[0].getsockname()[:2]
    shown = f"[{bound_host}]" if ":" in bound_host else bound_host
    return Serving(runner, listener, f"{'http' if tls is None else 'https'}://{shown}:{bound_port}")


def make_tls(config: GatewayHttpConfig) -> ssl.SSLContext | None:
    """Raises `ConfigError` for files that can't be used."""
    if config.tls_certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(config.tls_certificate, config.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"tls_certificate {config.tls_certificate!r} can't be used: {error}.") from error
    return context
