"""Names of HTTP headers between client, gateway and engine, and how the engine reads those of the gateway.

Only a gateway should set the request headers below. An engine that clients reach directly trusts whoever holds its key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple, cast, get_args

from tandem.core.errors import InvalidRequest
from tandem.core.types import ServiceClass

REQUEST_ID: Final = "X-Request-Id"
"""The caller's name for a request. Returned and logged; never used as a key, for two callers may choose the same."""
SERVICE_CLASS: Final = "X-Tandem-Class"
"""Gateway → engine, and in answers: `interactive` or `batch`. Beats the body's `service_tier`."""
PRIORITY: Final = "X-Tandem-Priority"
"""Gateway → engine: a whole number, lower is sooner. Beats the body's `priority`."""
CACHE_SALT: Final = "X-Tandem-Cache-Salt"
"""Gateway → engine: the tenant's salt for cached prefixes. Beats the body's `cache_salt`."""
POOL: Final = "X-Tandem-Pool"
"""In a gateway's answers: the pool that served the request."""
REPLICA: Final = "X-Tandem-Replica"
"""In a gateway's answers: the replica that served the request."""
RETRY_AFTER: Final = "Retry-After"
"""In 429 and 503: whole seconds."""

PRIORITY_LIMIT: Final = 1 << 31
MAX_SALT_CHARS: Final = 256
_REQUEST_ID_FORM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


class EngineHeaders(NamedTuple):
    """What a gateway decided about a request; None where it said nothing."""

    service_class: ServiceClass | None = None
    priority: int | None = None
    cache_salt: str | None = None


def read_engine_headers(headers: Mapping[str, str]) -> EngineHeaders:
    """Raises `InvalidRequest` for a value that can't be: it is a gateway's bug, and must not be guessed at."""
    return EngineHeaders(
        _service_class(headers.get(SERVICE_CLASS)),
        _priority(headers.get(PRIORITY)),
        check_salt(headers.get(CACHE_SALT), CACHE_SALT),
    )


def clean_request_id(given: str | None) -> str | None:
    """The caller's id if it is harmless in logs and headers, else None."""
    return given if given is not None and _REQUEST_ID_FORM.fullmatch(given) else None


def check_salt(salt: str | None, param: str = "cache_salt") -> str | None:
    """An empty salt would silently mean "share with everybody"; that must be said by giving none."""
    if salt is not None and not 0 < len(salt) <= MAX_SALT_CHARS:
        raise InvalidRequest(
            f"{param} has {len(salt)} characters; it must have 1 to {MAX_SALT_CHARS}, or be left out.", param=param
        )
    return salt


def check_priority(priority: int, param: str = "priority") -> int:
    if not -PRIORITY_LIMIT <= priority < PRIORITY_LIMIT:
        raise InvalidRequest(f"{param} must lie between -2^31 and 2^31 - 1.", param=param)
    return priority


def _service_class(value: str | None) -> ServiceClass | None:
    if value is not None and value not in get_args(ServiceClass):
        raise InvalidRequest(f"{SERVICE_CLASS} is {value!r:.60}; it must be interactive or batch.", param=SERVICE_CLASS)
    return cast("ServiceClass | None", value)


def _priority(value: str | None) -> int | None:
    if value is None:
        return None
    if not re.fullmatch(r"-?[0-9]{1,10}", value):
        raise InvalidRequest(f"{PRIORITY} is {value!r:.60}; it must be a whole number.", param=PRIORITY)
    return check_priority(int(value), PRIORITY)
