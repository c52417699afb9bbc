"""What operators, methods and functions of a template may do, and what they cost. Filters are in `template_filters.py`.

Whatever could make much out of little states its price first; a method that isn't in these tables isn't there.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Sized
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError

from tandem.engine.text.template_budget import STEP_UNITS, TooCostly, check_bits, spend, spend_result, spend_text

MAX_WIDTH = 1_000
"""Widest padding, in characters."""
_WIDTHS = re.compile(r"%(?:\([^)]{0,99}\))?[#0\- +]*(\*|\d+)?(?:\.(\*|\d+))?")

METHODS: dict[type, frozenset[str]] = {
    str: frozenset(
        {
            *("capitalize", "casefold", "count", "endswith", "find", "format", "index", "join", "lower", "lstrip"),
            *("isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "islower", "isnumeric", "isspace", "istitle"),
            *("isupper", "partition", "removeprefix", "removesuffix", "replace", "rfind", "rindex", "rpartition"),
            *("rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "swapcase", "title", "upper"),
        }
    ),
    dict: frozenset({"get", "items", "keys", "values"}),
    list: frozenset({"count", "index"}),
    tuple: frozenset({"count", "index"}),
    float: frozenset({"is_integer"}),
    int: frozenset(),
}
"""Type → the methods a template may call. Not among them: what pads to a width (center, ljust, zfill, …), and what
changes its object."""


class TemplateRefused(TemplateError):
    """The template itself turned the messages down, with `raise_exception`."""


def raise_exception(message: Any) -> NoReturn:
    spend_text(message)
    raise TemplateRefused(str(message))


def strftime_now(form: str) -> str:
    """Today, as a template wants it written. Local time, as everywhere in this field."""
    if len(form) > MAX_WIDTH or re.search(r"%[^A-Za-z%]*\d", form):
        raise TooCostly("it asks for a date in too wide a form")
    return datetime.now().strftime(form)


def binary(symbol: str, left: Any, right: Any) -> Any:
    """`+ * ** %`, for all that they do in Python, within bounds."""
    if symbol == "*":
        _spend_product(left, right)
    elif symbol == "**" and isinstance(left, int) and isinstance(right, int):
        check_bits(left.bit_length() * max(right, 1))
    elif symbol == "%" and isinstance(left, str):
        spend_percent_format(left, right)
    result = _OPERATORS[symbol](left, right)
    spend_result(result)
    return result


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "*": operator.mul,
    "**": operator.pow,
    "%": operator.mod,
}
INTERCEPTED = frozenset(_OPERATORS)
"""The others can't make more than they are given."""


def _spend_product(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        check_bits(left.bit_length() + right.bit_length())
    for repeated, times in ((left, right), (right, left)):
        if isinstance(repeated, Sized) and isinstance(times, int):
            spend(max(0, times) * len(repeated) * (1 if isinstance(repeated, str) else 8))


def spend_percent_format(form: str, values: Any) -> None:
    """For `form % values`."""
    for width in (part for found in _WIDTHS.findall(form) for part in found if part):
        if width == "*":
            raise TooCostly("it pads text to a width that it computes")
        check_width(width)
    spend_text(values)


def check_width(digits: str) -> None:
    if len(digits) > 6 or int(digits) > MAX_WIDTH:
        raise TooCostly(f"it pads text to a width of {digits:.20}")


def spend_method(text: str, name: str, args: tuple[Any, ...]) -> None:
    """Before a method of str is called."""
    spend(len(text))
    if name == "replace" and len(args) >= 2:
        spend_replace(text, args[0], args[1])
    elif name == "join" and args:
        spend_join(text, args[0])
    elif name in ("split", "rsplit", "splitlines"):
        separator = args[0] if args and isinstance(args[0], str) and args[0] else None
        spend(STEP_UNITS * (text.count(separator) if separator else len(text) // 4))


def spend_replace(text: str, old: Any, new: Any) -> None:
    if isinstance(old, str) and isinstance(new, str):
        spend(len(text) + (text.count(old) if old else len(text) + 1) * len(new))


def spend_join(separator: str, parts: Iterable[Any]) -> None:
    """`parts` is gone through: it must not be an iterator."""
    for part in parts:
        spend_text(part)
        spend(len(separator))


def finalize(value: Any) -> Any:
    """Of everything that is written out, before it is made a text. Texts are counted where they are collected."""
    if not isinstance(value, str):
        spend_text(value)
    return value


def concat(parts: Iterable[str]) -> str:
    """Joins what a macro or a `{% set %}` block has written."""
    listed = list(parts)
    spend(sum(map(len, listed)))
    return "".join(listed)
