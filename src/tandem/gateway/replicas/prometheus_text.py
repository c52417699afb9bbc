"""Reads the few metrics that matter out of Prometheus's text format. Knows no engine.

An engine exposes a thousand lines, of which a dozen are of use, and this runs for every replica every second: lines are
told apart by their name, and only the wanted ones are looked into. (A full parser takes some ten times as long.)
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import NamedTuple

_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")


class Series(NamedTuple):
    """One line."""

    labels: str
    """Between the braces, as written."""
    value: float

    def label(self, name: str) -> str | None:
        for key, text in _LABEL.findall(self.labels):
            if key == name:
                return _ESCAPE.sub(lambda found: "\n" if found[1] == "n" else found[1], text)
        return None


class Metrics:
    """name → its series. Raises `ValueError` if the text isn't in the format at all."""

    def __init__(self, body: bytes, names: Iterable[str]) -> None:
        wanted = dict.fromkeys(names)
        self._series: dict[str, list[Series]] = {}
        num_lines = 0
        for line in body.decode("utf-8", "replace").split("\n"):
            if not line or line[0] == "#":
                num_lines += line != ""
                continue
            name = line.partition("{")[0].partition(" ")[0]
            num_lines += 1
            if name in wanted:
                self._add(name, line)
        if num_lines and not self._series and not _looks_like_metrics(body):
            raise ValueError(f"the answer has no line of Prometheus's text format: {body[:80]!r}")

    def series(self, *names: str) -> list[Series]:
        """Of the first name that is there: newest spelling first."""
        for name in names:
            if found := self._series.get(name):
                return found
        return []

    def total(self, *names: str) -> float | None:
        """The sum over all series (several engines behind one address). None: missing, or any of them is no count."""
        values = [_count(series.value) for series in self.series(*names)]
        if not values or None in values:
            return None
        return math.fsum(value for value in values if value is not None)

    def whole(self, *names: str) -> int | None:
        total = self.total(*names)
        return None if total is None else round(total)

    def share(self, *names: str) -> float | None:
        """The largest of the series, 0..1: the fullest is the one that matters."""
        values = [series.value for series in self.series(*names)]
        if not values or not all(0 <= value <= 1 for value in values):  # also false for NaN
            return None
        return max(values)

    def counter(self, *names: str) -> float | None:
        """A counter, whether or not the client library added `_total` to its name."""
        spellings = [spelling for name in names for spelling in counter_names(name)]
        return self.total(*spellings)

    def _add(self, name: str, line: str) -> None:
        rest = line[len(name) :]
        labels = ""
        if rest.startswith("{"):
            end = _closing(rest)
            if end < 0:
                return
            labels, rest = rest[1:end], rest[end + 1 :]
        try:
            value = float(rest.split()[0])  # a time stamp may follow
        except (ValueError, IndexError):
            return
        self._series.setdefault(name, []).append(Series(labels, value))


def counter_names(name: str) -> tuple[str, str]:
    bare = name.removesuffix("_total")
    return f"{bare}_total", bare


def whole(text: str | None) -> int | None:
    """A label's value that is a number above zero."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and int(text) > 0 else None


def _count(value: float) -> float | None:
    return value if math.isfinite(value) and value >= 0 else None


def _closing(text: str) -> int:
    """Index of the brace that ends the labels: one inside a quoted value doesn't."""
    is_quoted = False
    position = 1
    while position < len(text):
        character = text[position]
        if is_quoted and character == "\\":
            position += 1
        elif character == '"':
            is_quoted = not is_quoted
        elif character == "}" and not is_quoted:
            return position
        position += 1
    return -1


_METRIC_LINE = re.compile(
    rb"^(#\s+(HELP|TYPE)\s|[a-zA-Z_:][a-zA-Z0-9_:]*(\{.*\})?\s+([-+]?[0-9.]|[-+]?Inf|NaN))", re.MULTILINE
)


def _looks_like_metrics(body: bytes) -> bool:
    return not body.lstrip().startswith((b"<", b"{", b"[")) and _METRIC_LINE.search(body[:65536]) is not None
