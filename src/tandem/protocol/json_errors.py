"""Turns a decoder's complaint into a sentence for a person and the name of the field it is about."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import msgspec

from tandem.core.errors import InvalidRequest

_WITH_PATH = re.compile(r"(?P<what>.*) - at `\$\.?(?P<path>[^`]*)`", re.DOTALL)
_EXPECTED = re.compile(r"Expected `(?P<expected>[^`]*)`, got `(?P<got>[^`]*)`")
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]*)`")
_KINDS: Final = {
    "int": "a whole number",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
"""msgspec's type → ours."""
_CONSTANTS: Final = (b"NaN", b"Infinity")
_MAX_SEARCHED_BYTES: Final = 1 << 20


def invalid_json(error: Exception, body: bytes) -> InvalidRequest:
    """The 400 for a body that could not be decoded."""
    if isinstance(error, msgspec.ValidationError):
        return _wrong_value(str(error))
    if isinstance(error, RecursionError):
        return InvalidRequest("The body is nested too deeply.")
    if any(constant in body for constant in _CONSTANTS) and (path := _find_constant(body)) is not None:
        return InvalidRequest(f"{path} is not a finite number, which JSON does not allow.", param=path)
    return InvalidRequest(f"The body is not valid JSON: {error}.")


def _wrong_value(text: str) -> InvalidRequest:
    match = _WITH_PATH.fullmatch(text)
    what, path = (match["what"], match["path"].replace("[...]", "")) if match else (text, "")
    if missing := _MISSING.fullmatch(what):
        path = f"{path}.{missing['name']}" if path else missing["name"]
        return InvalidRequest(f"{path} is required.", param=path)
    name = path or "The body"
    if expected := _EXPECTED.match(what):
        what = f"{name} must be {_either(expected['expected'])}, not {_KINDS.get(expected['got'], expected['got'])}."
    else:
        what = f"{name} has a value that is not allowed: {what[0].lower()}{what[1:]}."
    return InvalidRequest(what, param=path or None)


def _either(expected: str) -> str:
    kinds = [_KINDS.get(kind, kind) for kind in expected.split(" | ")]
    return kinds[0] if len(kinds) == 1 else f"{', '.join(kinds[:-1])} or {kinds[-1]}"


class _NotFinite:
    """Marks where NaN or an infinity stood."""


def _find_constant(body: bytes) -> str | None:
    """The first field that holds NaN or an infinity. Python's own reader accepts them; only used once ours has not."""
    if len(body) > _MAX_SEARCHED_BYTES:
        return None
    try:
        return _path_of_mark(json.loads(body, parse_constant=lambda _: _NotFinite()))
    except (ValueError, RecursionError):
        return None


def _path_of_mark(value: Any, path: str = "") -> str | None:
    if isinstance(value, _NotFinite):
        return path
    if isinstance(value, dict):
        steps = ((f"{path}.{key}" if path else key, item) for key, item in value.items())
    elif isinstance(value, list):
        steps = ((f"{path}[{index}]", item) for index, item in enumerate(value))
    else:
        return None
    return next((found for step, item in steps if (found := _path_of_mark(item, step)) is not None), None)
