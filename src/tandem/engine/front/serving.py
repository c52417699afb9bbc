"""An application on a TCP port or a Unix socket. Knows nothing of what the application does.

A handler is cancelled when its client leaves: that is what reaches the engine as an abort, whatever the handler waits
for. aiohttp's plain-text answer to malformed HTTP is replaced by OpenAI's shape.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
from dataclasses import dataclass
from typing import Final, cast

from aiohttp import web

from tandem.config.server import ServerConfig
from tandem.core.errors import ConfigError
from tandem.engine.front.responses import status_error_response

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
    """A listening application. `close` ends it."""

    runner: web.AppRunner
    listener: asyncio.Server
    address: str
    """`http://host:port`, or `unix:path`."""
    uds: str | None = None

    async def close(self) -> None:
        """Take no more connections, give open requests the runner's time-out to end, then drop them."""
        self.listener.close()
        await self.runner.cleanup()
        if self.uds is not None:
            _remove_socket(self.uds)


async def serve(app: web.Application, config: ServerConfig, *, close_timeout_s: float = 1.0) -> Serving:
    """Listen as configured. Raises `ConfigError` when the address can't be had."""
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=close_timeout_s, access_log=None)
    await runner.setup()
    try:
        listener = await _listen(runner, config)
    except OSError as error:
        await runner.cleanup()
        where = config.uds or f"{config.host}:{config.port}"
        raise ConfigError(f"can't listen on {where}: {error.strerror or error}.") from error
    return Serving(runner, listener, _address(listener, config), config.uds)


async def _listen(runner: web.AppRunner, config: ServerConfig) -> asyncio.Server:
    loop, manager = asyncio.get_running_loop(), runner.server
    assert manager is not None, "the runner is set up"

    def connect() -> _Connection:
        return _Connection(manager, loop=loop, access_log=cast("logging.Logger", None))  # None is off, says aiohttp

    if config.uds is None:
        return await loop.create_server(connect, config.host, config.port, backlog=_BACKLOG)
    _remove_stale_socket(config.uds)
    return await loop.create_unix_server(connect, config.uds, backlog=_BACKLOG)


def _address(listener: asyncio.Server, config: ServerConfig) -> str:
    if config.uds is not None:
        return f"unix:{config.uds}"
    host, port = listener.sockets[0].getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _remove_stale_socket(path: str) -> None:
    """Left by a process that was killed. One that answers is in use; anything that is not a socket is not ours."""
    if not os.path.lexists(path):
        return
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise ConfigError(f"{path} exists and is not a socket; name another path for uds.")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        if probe.connect_ex(path) == 0:
            raise ConfigError(f"another server is listening on {path}.")
    os.unlink(path)


def _remove_socket(path: str) -> None:
    if os.path.lexists(path):
        os.unlink(path)
