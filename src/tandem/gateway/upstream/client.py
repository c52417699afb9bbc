"""Connections to all replicas: kept alive between requests, made when needed, TCP, TLS or Unix sockets.

There is no limit on connections here: how many requests a replica gets is the admission's and the policy's business.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tandem.config.gateway_upstream import UpstreamConfig
from tandem.core.clock import Clock, SystemClock
from tandem.gateway.upstream.address import Address, parse_address
from tandem.gateway.upstream.answer import UpstreamAnswer
from tandem.gateway.upstream.connection import Connection
from tandem.gateway.upstream.failures import ConnectFailed, StaleConnection

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Endpoint:
    """What is kept for one address."""

    address: Address
    idle: deque[Connection] = field(default_factory=deque)
    """The most recently used is at the right, and is taken first: the rest may grow old and go."""
    open: set[Connection] = field(default_factory=set)


class UpstreamClient:
    """One for the process. Not for several event loops."""

    def __init__(self, config: UpstreamConfig | None = None, clock: Clock | None = None) -> None:
        self._config = config or UpstreamConfig()
        self._clock = (clock or SystemClock()).now
        self._endpoints: dict[str, _Endpoint] = {}

    async def send(
        self,
        url: str,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | None,
        *,
        watch: Callable[[UpstreamAnswer], None] | None = None,
    ) -> UpstreamAnswer:
        """Returns when status and headers have come. `watch` gets the answer as soon as the request has left, so that
        somebody can see silence and `fail` it. Raises `UpstreamFailure`. Cancelling closes the connection.

        An idle connection that turns out to be closed says nothing of the replica: the request goes again on a new one.
        """
        endpoint = self._endpoint(url)
        request = _encode(endpoint.address, method, path, headers, body)
        while True:
            connection = self._take_idle(endpoint) or await self._connect(url, endpoint)
            answer = connection.begin(request)
            if watch is not None:
                watch(answer)
            try:
                await answer.head()
            except StaleConnection:
                self._drop_idle(endpoint)
                continue
            return answer

    def reconfigure(self, config: UpstreamConfig) -> None:
        """For connections from now on."""
        self._config = config

    def forget(self, url: str) -> None:
        """A replica is gone for good: its idle connections are closed; busy ones end with their answers."""
        if (endpoint := self._endpoints.pop(url, None)) is not None:
            self._drop_idle(endpoint)

    async def close(self) -> None:
        """All connections, busy ones too."""
        endpoints, self._endpoints = self._endpoints, {}
        for endpoint in endpoints.values():
            for connection in list(endpoint.open):
                connection.abort()
        await asyncio.sleep(0)

    @property
    def num_open(self) -> int:
        return sum(len(endpoint.open) for endpoint in self._endpoints.values())

    def _endpoint(self, url: str) -> _Endpoint:
        endpoint = self._endpoints.get(url)
        if endpoint is None:
            endpoint = self._endpoints[url] = _Endpoint(parse_address(url))
        return endpoint

    def _take_idle(self, endpoint: _Endpoint) -> Connection | None:
        now_s = self._clock()
        while endpoint.idle:
            connection = endpoint.idle.pop()
            if connection.is_usable and now_s - connection.idle_since_s <= self._config.keepalive_s:
                return connection
            connection.abort()
        return None

    def _drop_idle(self, endpoint: _Endpoint) -> None:
        while endpoint.idle:
            endpoint.idle.pop().abort()

    async def _connect(self, url: str, endpoint: _Endpoint) -> Connection:
        config = self._config

        def idle(connection: Connection) -> None:
            connection.idle_since_s = self._clock()
            if self._endpoints.get(url) is not endpoint or len(endpoint.idle) >= config.max_idle_connections:
                connection.abort()
            else:
                endpoint.idle.append(connection)

        def lost(connection: Connection) -> None:
            endpoint.open.discard(connection)
            if connection in endpoint.idle:
                endpoint.idle.remove(connection)

        connection = Connection(config.max_header_kib << 10, self._clock, idle, lost)
        try:
            async with asyncio.timeout(config.connect_timeout_s):
                await _open(endpoint.address, connection)
        except TimeoutError:
            raise ConnectFailed(f"no connection within {config.connect_timeout_s:g} s") from None
        except OSError as error:
            _log.debug("connecting failed: %s", error)
            raise ConnectFailed(f"no connection: {error.strerror or type(error).__name__}") from error
        endpoint.open.add(connection)
        return connection


async def _open(address: Address, connection: Connection) -> None:
    loop = asyncio.get_running_loop()
    if address.uds is not None:
        await loop.create_unix_connection(lambda: connection, address.uds)
        return
    assert address.host is not None, "either a socket or a host"
    transport, _ = await loop.create_connection(lambda: connection, address.host, address.port, ssl=address.tls)
    if (tcp := transport.get_extra_info("socket")) is not None:
        tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tcp.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a host that vanished is found out


def _encode(address: Address, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
    """The whole request. Header values come from us or were checked; a line break in one would be our bug."""
    lines = [f"{method} {address.base_path}{path} HTTP/1.1"]
    for name, value in headers.items():
        assert "\n" not in value and "\r" not in value, f"line break in {name}"  # noqa: PT018
        lines.append(f"{name}: {value}")
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    head = "\r\n".join(lines).encode("latin-1")
    return b"%b\r\nHost: %b\r\n\r\n%b" % (head, address.host_header, body or b"")
