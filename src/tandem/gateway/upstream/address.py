"""A replica's address: what to connect to, and what to call it in the Host header."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from tandem.core.errors import ConfigError

_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Address:
    """Parsed once for each replica, not once for each request."""

    host: str | None
    port: int
    uds: str | None
    tls: ssl.SSLContext | None
    base_path: str
    """Goes before every path; "" as a rule."""
    host_header: bytes


def parse_address(url: str) -> Address:
    """`http://host:port`, `https://host`, or `unix:///path/of.sock`. Raises `ConfigError`."""
    parts = urlsplit(url)
    if parts.scheme == "unix" and parts.path:
        return Address(None, 0, unquote(parts.path), None, "", b"localhost")
    try:
        port = parts.port or _DEFAULT_PORTS[parts.scheme]
    except (KeyError, ValueError):
        raise _wrong(url) from None
    if not parts.hostname or parts.username or parts.query or parts.fragment:
        raise _wrong(url)
    tls = ssl.create_default_context() if parts.scheme == "https" else None
    return Address(parts.hostname, port, None, tls, parts.path.rstrip("/"), parts.netloc.encode("idna"))


def _wrong(url: str) -> ConfigError:
    shown = urlsplit(url)._replace(netloc=urlsplit(url).netloc.rpartition("@")[2]).geturl()
    return ConfigError(f"{shown!r} is no address of a replica; it must be http://host:port, https://… or unix:///path.")
