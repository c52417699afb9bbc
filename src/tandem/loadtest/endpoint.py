"""Where requests go: an address, a key, and the head of each HTTP request, made once."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from tandem.core.errors import ConfigError

_P = TypeVar("_P", bound=asyncio.Protocol)
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address with the key that it wants."""

    url: str
    host: str | None
    port: int
    uds: str | None
    tls: ssl.SSLContext | None
    base_path: str
    host_header: str
    api_key: str | None = None

    def head(self, method: str, path: str, length: int) -> bytes:
        """An HTTP/1.1 request's head, the blank line included."""
        key = f"Authorization: Bearer {self.api_key}\r\n" if self.api_key else ""
        body = f"Content-Type: application/json\r\nContent-Length: {length}\r\n" if length else ""
        return f"{method} {self.base_path}{path} HTTP/1.1\r\nHost: {self.host_header}\r\n{key}{body}\r\n".encode()

    async def connect(self, make: Callable[[], _P]) -> _P:
        """Raises `OSError`."""
        loop = asyncio.get_running_loop()
        if self.host is None:
            _, protocol = await loop.create_unix_connection(make, self.uds)
        else:
            _, protocol = await loop.create_connection(make, self.host, self.port, ssl=self.tls)
        return protocol


def parse_endpoint(url: str, api_key: str | None = None) -> Endpoint:
    """`http://host:port`, with or without `/v1`, or `unix:///path/of.sock`. Raises `ConfigError`."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if api_key and not (api_key.isascii() and api_key.isprintable()):
        raise ConfigError("the API key has characters that can't stand in an HTTP header.")
    if parts.scheme == "unix" and parts.path:
        return Endpoint(url, None, 0, unquote(parts.path), None, "", "localhost", api_key)
    try:
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)
    except ValueError:
        raise _wrong(url) from None
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise _wrong(url)
    path = parts.path.rstrip("/").removesuffix("/v1")
    tls = ssl.create_default_context() if parts.scheme == "https" else None
    return Endpoint(url, parts.hostname, port, None, tls, path, parts.netloc, api_key)


def _wrong(url: str) -> ConfigError:
    return ConfigError(f"{url!r} is no endpoint; it must be http://host:port, https://host/… or unix:///path.sock.")
