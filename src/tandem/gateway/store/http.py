"""What the store's routes share: who calls, JSON answers, and the numbers in a query string."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import msgspec
from aiohttp import web

from tandem.core.errors import InvalidRequest, NotFound
from tandem.gateway.context import Caller
from tandem.gateway.errors import Forbidden

MAX_TEXT_CHARS: Final = 255
Authenticate = Callable[[web.Request], Caller]
"""Whose request it is. Raises `Unauthorized`."""


def require_admin(caller: Caller) -> Caller:
    if not caller.is_admin:
        raise Forbidden("This needs an admin key: one with admin = true in the configuration, or made with is_admin.")
    return caller


def json_response(body: msgspec.Struct, *, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")


def text_parameter(request: web.Request, name: str) -> str | None:
    """A parameter of the query. Raises `InvalidRequest` for what no name of ours can have in it."""
    text = request.query.get(name)
    if text is not None and (len(text) > MAX_TEXT_CHARS or not text.isprintable()):
        raise InvalidRequest(
            f"{name} is {text!r:.80}; it must have at most {MAX_TEXT_CHARS} characters, all printable.", param=name
        )
    return text


def path_parameter(request: web.Request, name: str) -> str:
    """An id in the path. Raises `NotFound` for what can be none."""
    text = request.match_info[name]
    if not re.fullmatch(r"[\w.:-]{1,63}", text):
        raise NotFound(f"There is nothing with the id {text!r:.80}.", param=name)
    return text


def whole_number(request: web.Request, name: str, default: int, low: int, high: int) -> int:
    """A parameter of the query. Raises `InvalidRequest`."""
    text = request.query.get(name)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        raise InvalidRequest(f"{name} is {text!r:.40}; it must be a whole number from {low} to {high}.", param=name)
    return value


def choice(request: web.Request, name: str, default: str, allowed: tuple[str, ...]) -> str:
    """A parameter of the query with a closed set of values. Raises `InvalidRequest`."""
    text = request.query.get(name, default)
    if text not in allowed:
        raise InvalidRequest(f"{name} is {text!r:.40}; it must be one of {', '.join(allowed)}.", param=name)
    return text
