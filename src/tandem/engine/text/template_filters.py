"""The filters a template may use: Jinja's own that are of use in a prompt, metered, and those of Hugging Face.

Left out are those for web pages, and those whose cost can't be told from their arguments.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.environment import Environment
from jinja2.filters import FILTERS, make_attrgetter
from jinja2.runtime import Context
from jinja2.utils import pass_context, pass_environment

from tandem.engine.text.template_budget import STEP_UNITS, TooCostly, spend, spend_result, spend_text
from tandem.engine.text.template_rules import spend_join, spend_percent_format, spend_replace

_OF_TEXT = (
    *("capitalize", "e", "escape", "format", "indent", "lower"),
    *("replace", "safe", "string", "title", "trim", "truncate", "upper"),
)
"""They make a text of whatever they are given."""
_OF_ALL = ("batch", "dictsort", "groupby", "list", "max", "min", "reverse", "slice", "sort", "sum", "unique")
"""They go through everything at once."""
_CHEAP = (
    *("abs", "count", "d", "default", "first", "float", "int", "items", "last", "length"),
    *("map", "reject", "rejectattr", "round", "select", "selectattr"),
)
"""They look at one thing, or at one at a time."""
_MAX_COUNTS = {"batch": 100_000, "slice": 100_000, "indent": 1_000, "round": 100}
"""Filter → largest number among its arguments."""
_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"


def template_filters() -> dict[str, Callable[..., Any]]:
    """Name → filter. Those that begin with "_" stand in for syntax: see `sandbox.py`."""
    filters: dict[str, Callable[..., Any]] = {name: _missing(name) for name in FILTERS}
    filters.update((name, _metered(name, FILTERS[name])) for name in (*_OF_TEXT, *_OF_ALL, *_CHEAP))
    filters.update(join=pass_environment(_join), tojson=_tojson, _cut=_cut, _concat=_concat)
    # Jinja computes filters of constants when it compiles, except for those that are passed the context.
    filters["_tick"] = pass_context(_tick)
    return filters


def _missing(name: str) -> Callable[..., Any]:
    """Fails when it is used, not when the template is read: a model whose template does so once can still be served."""

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise TemplateError(f"chat templates can't use the filter {name!r}")

    return refuse


def _metered(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    first = 1 if hasattr(function, "jinja_pass_arg") else 0  # behind the context or environment that Jinja passes

    @functools.wraps(function)  # keeps Jinja's marks on it
    def call(*args: Any, **kwargs: Any) -> Any:
        _spend(name, [*args[first:], *kwargs.values()])
        result = function(*args, **kwargs)
        spend_result(result)
        return result

    return call


def _spend(name: str, values: list[Any]) -> None:
    limit = _MAX_COUNTS.get(name)
    if limit is not None and any(isinstance(value, int) and abs(value) > limit for value in values[1:]):
        raise TooCostly(f"it calls {name} with a number above {limit}")
    if name in _OF_TEXT:
        _spend_text_filter(name, values)
    elif name in _OF_ALL:
        _spend_list_filter(name, values)
    else:
        spend()


def _spend_text_filter(name: str, values: list[Any]) -> None:
    for value in values:
        spend_text(value)
    if name == "replace" and len(values) >= 3:
        spend_replace(str(values[0]), values[1], values[2])
    elif name == "format" and values:
        spend_percent_format(str(values[0]), values[1:])
    elif name == "indent" and len(values) >= 2:
        width = len(values[1]) if isinstance(values[1], str) else int(values[1])
        spend(sum(str(values[0]).count(end) for end in _LINE_ENDS) * width)
    elif name == "title":
        spend(STEP_UNITS * len(str(values[0])) // 4)  # it takes the text apart into words


def _spend_list_filter(name: str, values: list[Any]) -> None:
    if name == "sum" and any(not isinstance(value, str | int | float) for value in values[1:]):
        raise TooCostly("it adds up something other than numbers")
    sized = bool(values) and isinstance(values[0], str | list | tuple | dict)
    spend(STEP_UNITS * (len(values[0]) if sized else 1))


def _join(environment: Environment, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    parts = list(value) if attribute is None else list(map(make_attrgetter(environment, attribute), value))
    spend_join(str(d), parts)
    return str(d).join(map(str, parts))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As in transformers: no escapes for HTML, and letters stay letters."""
    if indent is not None and indent > 16:
        raise TooCostly(f"it indents JSON by {indent}")
    spend_text(value)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _cut(value: Any, start: int | None, stop: int | None, step: int | None) -> Any:
    """`value[start:stop:step]`."""
    result = value[start:stop:step]
    spend_result(result)
    return result


def _concat(values: list[Any]) -> str:
    """`a ~ b`."""
    spend_join("", values)
    return "".join(map(str, values))


def _tick(_: Context, value: Any = None) -> Any:
    """A turn of a loop."""
    spend()
    return value
