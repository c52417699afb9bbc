"""What the gateway must know about a kind of engine. One implementation a file; a dict maps kind → adapter."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec

from tandem.config.deployment import EngineKind
from tandem.gateway.context import RequestContext
from tandem.gateway.replicas.replica import Replica, Signals

Fields = dict[str, msgspec.Raw]
"""A request body's top level: field → its JSON, unparsed."""


class Call(NamedTuple):
    """A small request of the gateway's own: a probe, a scrape, a wake-up."""

    method: str
    path: str
    body: bytes | None = None


class Fetch(Protocol):
    """How the gateway's own calls reach a replica; replaced in tests."""

    def __call__(
        self, replica: Replica, method: str, path: str, body: bytes | None, timeout_s: float
    ) -> Awaitable[tuple[int, bytes]]:
        """(status, body), the whole of it. Raises `UpstreamFailure`, `OSError` or `TimeoutError`."""
        ...


@dataclass(frozen=True, slots=True)
class UpstreamError:
    """An engine's error in OpenAI's terms."""

    status: int
    message: str
    type: str
    code: str | None = None
    param: str | None = None
    is_retryable: bool = False
    """Another replica, or later, may succeed: overload, not-ready, a crash; never a bad request."""


@dataclass(frozen=True, slots=True)
class AdapterOptions:
    """What differs between two engines of one kind."""

    has_priorities: bool = False
    """It was started with priority scheduling: vLLM and SGLang refuse priorities otherwise."""


class Adapter(Protocol):
    """Pure functions on bytes, no sockets: health.py and the proxy do the talking."""

    kind: EngineKind

    def path(self, endpoint: str) -> str:
        """Where the engine has an endpoint of OpenAI's: "/v1/chat/completions" → its own path."""
        ...

    def request_fields(self, fields: Fields, request: RequestContext, model: str) -> Fields:
        """The body to send: model name, usage in streams asked for, priority in this engine's direction, output cap,
        sampling defaults that keep what the client left out meaning the same everywhere; a client's own `priority`
        and `cache_salt` dropped; `service_tier` only where the engine knows it."""
        ...

    def request_headers(self, request: RequestContext) -> Mapping[str, str]:
        """Beside content type and authorization."""
        ...

    def ready_probe(self) -> tuple[str, str, bytes | None]:
        """(method, path, body) of the check that means something for this engine."""
        ...

    def deep_probe(self, model: str) -> tuple[str, str, bytes | None] | None:
        """A one-token request, for engines whose health lies; None where the ready probe is deep already."""
        ...

    def probe_failure(self, path: str, status: int, body: bytes, model: str) -> str | None:
        """Why the answer to one of the two probes (told by its path) is no good, in words; None: it is."""
        ...

    def metrics_path(self) -> str | None: ...

    def fallback_metrics_path(self) -> str | None:
        """Asked where `metrics_path` is a 404: an older version, or another setting."""
        ...

    def parse_signals(self, body: bytes, now_s: float) -> Signals:
        """Raises ValueError for what it can't read; missing, NaN and negative figures become None, never zero."""
        ...

    def error(self, status: int, body: bytes) -> UpstreamError:
        """Of an answer that isn't 2xx, or of a 200 whose body is an error."""
        ...

    def event_error(self, data: bytes) -> UpstreamError | None:
        """Of one SSE event's data: an error under HTTP 200, or None for ordinary data."""
        ...

    def cancel_call(self, request: RequestContext) -> Call | None:
        """Beside closing the connection, which always happens and is enough for most."""
        ...

    def sleep_call(self) -> Call | None:
        """Free the device's memory, keep the process. None: it can't."""
        ...

    def wake_call(self) -> Call | None: ...

    def asleep_call(self) -> Call | None:
        """Asks whether it sleeps."""
        ...
