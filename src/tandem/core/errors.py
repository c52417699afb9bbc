"""Every error the world can cause, as one tree.

    TandemError
    ├── InvalidRequest          400  the request itself is wrong; `param` names the field
    │   ├── RequestTooLarge     413  more bytes than the server reads
    │   └── RequestTimeout      408  the body stopped coming
    ├── Unauthorized            401  no key, or a wrong one
    ├── NotFound                404  no such model or route
    ├── Overloaded              429  the queue is full; `retry_after_s` says when to come back
    ├── Unavailable             503  loading, draining, or no engine
    ├── EngineFailed            500  the engine died or failed under this request
    ├── ConfigError             exit 1: a configuration that can't work
    ├── ModelError              exit 1: a model that can't be found, read or run
    │   ├── ModelNotFound
    │   ├── ModelDamaged        truncated file, missing shard, wrong shape, hostile header
    │   └── ModelUnsupported    an architecture, tensor type or tokenizer that Tandem doesn't have
    ├── MemoryTooSmall          exit 1: weights or context don't fit; the message says what would
    └── BuildFailed             exit 1: an engine file can't be built; the message says what to change

A message says what was given, what is allowed, and what to do. `assert` is for our own bugs; these are for the world's.
"""

from __future__ import annotations


class TandemError(Exception):
    """Base of all errors that are not bugs. Its text is meant for a person and may be shown to a client."""

    status = 500
    """HTTP status when it reaches a client."""
    type = "server_error"
    """OpenAI's `error.type`."""
    code: str | None = None
    """OpenAI's `error.code`, where one is customary."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class InvalidRequest(TandemError):
    """The request can't be served as it stands, however often it is sent."""

    status = 400
    type = "invalid_request_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message, param=param)
        self.code = code


class RequestTooLarge(InvalidRequest):
    """The body is larger than the server reads."""

    status = 413


class RequestTimeout(InvalidRequest):
    """The client began a request and stopped sending."""

    status = 408


class Unauthorized(TandemError):
    """No API key was given, or one that is not known."""

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class NotFound(TandemError):
    """No such model, file or route."""

    status = 404
    type = "invalid_request_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = "not_found") -> None:
        super().__init__(message, param=param)
        self.code = code


class Overloaded(TandemError):
    """The waiting room is full. Nothing was computed for the request."""

    status = 429
    type = "rate_limit_error"
    code = "queue_full"

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unavailable(TandemError):
    """Nothing can serve the request now: still loading, shutting down, or the engine is gone."""

    status = 503
    type = "service_unavailable_error"
    code = "unavailable"

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineFailed(TandemError):
    """The engine died, or failed this request; the request may be sent again elsewhere."""

    code = "engine_failed"


class ConfigError(TandemError):
    """A flag, an environment variable or tandem.toml asks for something that can't be."""


class ModelError(TandemError):
    """The model can't be served."""


class ModelNotFound(ModelError):
    """No folder, file, catalogue name or hub id by that name."""


class ModelDamaged(ModelError):
    """The files contradict themselves: truncated, a missing shard, a wrong shape, a hostile header."""


class ModelUnsupported(ModelError):
    """An architecture, tensor type or tokenizer that Tandem doesn't have."""


class MemoryTooSmall(TandemError):
    """Weights or the asked-for context don't fit the memory at hand."""


class BuildFailed(TandemError):
    """An engine file can't be built: the network can't be exported or compiled, or its quality is past the limit."""
