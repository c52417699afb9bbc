"""Answers and errors as aiohttp's responses: JSON always, with the headers that belong to them."""

from __future__ import annotations

import math
from http import HTTPStatus

import msgspec
from aiohttp import web

from tandem.core.errors import InvalidRequest, NotFound, RequestTooLarge, TandemError, Unauthorized
from tandem.gateway.errors import UpstreamRefused
from tandem.gateway.exchange import Answer
from tandem.protocol import headers as names
from tandem.protocol.errors import ErrorDetail, ErrorResponse, encode_error


def answer_response(answer: Answer) -> web.Response:
    return web.Response(body=answer.body, status=answer.status, headers=answer.headers)


def error_answer(error: TandemError) -> Answer:
    """Any error of the tree, in OpenAI's shape; an engine's own body where it has that shape already."""
    headers = {"Content-Type": "application/json"}
    retry_after_s = getattr(error, "retry_after_s", None)
    if retry_after_s is not None:
        headers[names.RETRY_AFTER] = str(max(1, math.ceil(retry_after_s)))
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    body = error.body if isinstance(error, UpstreamRefused) else None
    return Answer(error.status, headers, body if body is not None else encode_error(error))


def error_response(error: TandemError) -> web.Response:
    return answer_response(error_answer(error))


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
    body = msgspec.json.encode(ErrorResponse(error=detail))
    return web.Response(body=body, status=status, content_type="application/json")
