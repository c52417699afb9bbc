"""OpenAI's error object, made from the tree in `core.errors`. It knows no HTTP library; `status` is a plain number."""

from __future__ import annotations

import msgspec

from tandem.core.errors import TandemError


class ErrorDetail(msgspec.Struct, kw_only=True):
    """What is inside `error`. All four keys are always there, as OpenAI's clients expect."""

    message: str
    type: str = "server_error"
    param: str | None = None
    code: str | None = None


class ErrorResponse(msgspec.Struct, kw_only=True):
    """The body of every answer that is not a success, and of an error event in a stream."""

    error: ErrorDetail


def error_response(error: TandemError) -> ErrorResponse:
    """The wire form of an error. Messages in the tree are written for clients, so they go out as they are."""
    return ErrorResponse(error=ErrorDetail(message=error.message, type=error.type, param=error.param, code=error.code))


def encode_error(error: TandemError) -> bytes:
    return msgspec.json.encode(error_response(error))
