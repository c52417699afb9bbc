"""How answers and errors become HTTP responses: JSON always, with the headers that belong to them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from http import HTTPStatus

import msgspec
from aiohttp import web

from tandem.core.errors import InvalidRequest, NotFound, RequestTooLarge, TandemError, Unauthorized
from tandem.engine.front.prepare import Accepted
from tandem.protocol import headers as names
from tandem.protocol.errors import ErrorDetail, ErrorResponse, encode_error


def json_response(body: msgspec.Struct, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, headers=headers, content_type="application/json")


def answer_headers(accepted: Accepted) -> dict[str, str]:
    return {names.SERVICE_CLASS: accepted.service_class}


def error_response(error: TandemError) -> web.Response:
    """Any error of the tree, in OpenAI's shape."""
    headers: dict[str, str] = {}
    retry_after_s = getattr(error, "retry_after_s", None)
    if retry_after_s is not None:
        headers[names.RETRY_AFTER] = str(math.ceil(retry_after_s))
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    return web.Response(body=encode_error(error), status=error.status, headers=headers, content_type="application/json")


def http_error_response(error: web.HTTPException, request: web.Request) -> web.Response:
    """aiohttp's own errors, which are plain text, in OpenAI's shape."""
    if error.status == HTTPStatus.NOT_FOUND:
        return error_response(NotFound(f"There is no {request.path[:200]!r} here."))
    if error.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return error_response(RequestTooLarge("The body is larger than this server reads."))
    response = status_error_response(error.status)
    if "Allow" in error.headers:
        response.headers["Allow"] = error.headers["Allow"]
    return response


def status_error_response(status: int) -> web.Response:
    """A status with nothing more to say than its name."""
    kind = InvalidRequest.type if status < HTTPStatus.INTERNAL_SERVER_ERROR else TandemError.type
    phrase = HTTPStatus(status).phrase
    code = phrase.lower().replace(" ", "_")
    detail = ErrorDetail(message=f"{phrase}: the server can't answer this HTTP request.", type=kind, code=code)
    return json_response(ErrorResponse(error=detail), status=status)
