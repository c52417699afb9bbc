"""Errors that only a gateway has, in the tree of core/errors, and where each failure of a replica belongs in it.

TandemError
├── UpstreamFailed          502  no replica could answer
├── UpstreamSilent          504  a replica was silent for too long
├── UpstreamRefused         as the engine said: 4xx and the like, with its own words
└── Forbidden               403  the key may not do this
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tandem.core.errors import Overloaded, TandemError, Unavailable
from tandem.gateway.replicas.base import UpstreamError
from tandem.gateway.upstream.failures import Silent, UpstreamFailure

HTTP_TOO_MANY_REQUESTS: Final = 429
HTTP_SERVER_ERROR: Final = 500
HTTP_UNAVAILABLE: Final = 503


class UpstreamFailed(TandemError):
    """No replica gave an answer; the request may be sent again."""

    status = 502
    code = "upstream_failed"


class UpstreamSilent(TandemError):
    """A replica took the request and said nothing for too long."""

    status = 504
    type = "timeout_error"
    code = "upstream_silent"


class UpstreamRefused(TandemError):
    """The engine's own refusal. `body`, where it already has OpenAI's shape, goes to the client as it came."""

    def __init__(self, error: UpstreamError, body: bytes | None = None) -> None:
        super().__init__(error.message, param=error.param)
        self.status = error.status
        self.type = error.type
        self.code = error.code
        self.body = body


class Forbidden(TandemError):
    """The key is known, and this is not for it."""

    status = 403
    type = "permission_error"
    code = "forbidden"


def of_failure(failure: UpstreamFailure) -> TandemError:
    """What a client is told. Addresses and the system's own words stay in the log."""
    if isinstance(failure, Silent):
        return UpstreamSilent(f"The engine was silent for too long: {failure.message}.")
    return UpstreamFailed(f"The engine could not be reached, or broke off: {failure.message}.")


def of_upstream(error: UpstreamError, retry_after_s: float | None, body: bytes | None) -> TandemError:
    """The engine's error under its own status: 429 stays 429, 503 stays 503, both with the engine's Retry-After."""
    if error.status == HTTP_TOO_MANY_REQUESTS:
        overloaded = Overloaded(error.message, retry_after_s=1.0 if retry_after_s is None else retry_after_s)
        overloaded.code = error.code or overloaded.code
        return overloaded
    if error.status == HTTP_UNAVAILABLE:
        return Unavailable(error.message, retry_after_s=1.0 if retry_after_s is None else retry_after_s)
    if error.status == HTTP_SERVER_ERROR:  # the gateway itself hasn't failed
        return UpstreamRefused(replace(error, status=UpstreamFailed.status), None)
    return UpstreamRefused(error, body)
