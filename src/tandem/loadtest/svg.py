"""Line charts as inline SVG: no script, no font, no network, so that a report opens anywhere and for ever."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

_WIDTH, _HEIGHT = 560, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 34, 46
_COLOURS = ("#2563eb", "#dc2626", "#059669", "#9333ea", "#d97706", "#0891b2")

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    points: Sequence[Point]
    is_dots: bool = False


@dataclass(slots=True)
class Chart:
    """Axes begin at 0, or at the least value on a logarithmic one."""

    title: str
    x_label: str
    y_label: str
    series: list[Series] = field(default_factory=list)
    is_log_x: bool = False
    is_log_y: bool = False
    marked_x: float | None = None
    """A vertical line: the knee."""

    def render(self) -> str:
        points = [point for series in self.series for point in series.points]
        if not points:
            return ""
        x = _Axis([p[0] for p in points], _LEFT, _WIDTH - _RIGHT, is_log=self.is_log_x)
        y = _Axis([p[1] for p in points], _HEIGHT - _BOTTOM, _TOP, is_log=self.is_log_y)
        parts = [self._frame(x, y), *(_draw(s, x, y, _COLOURS[i % 6]) for i, s in enumerate(self.series))]
        if self.marked_x is not None and self.marked_x > 0:
            at = x.place(self.marked_x)
            parts.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}" class="knee"/>')
        return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{"".join(parts)}{self._legend()}</svg>'

    def _frame(self, x: _Axis, y: _Axis) -> str:
        bottom = _HEIGHT - _BOTTOM
        parts = [f'<text x="{_LEFT}" y="18" class="title">{escape(self.title)}</text>']
        for value in y.ticks():
            at = y.place(value)
            parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}" class="grid"/>')
            parts.append(f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{_short(value)}</text>')
        for value in x.ticks():
            at = x.place(value)
            parts.append(f'<text x="{at:.1f}" y="{bottom + 16}" text-anchor="middle">{_short(value)}</text>')
        middle = (_LEFT + _WIDTH - _RIGHT) / 2
        parts.append(f'<text x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(self.x_label)}</text>')
        turned = f'transform="rotate(-90 14 {_HEIGHT / 2})"'
        parts.append(f'<text x="14" y="{_HEIGHT / 2}" text-anchor="middle" {turned}>{escape(self.y_label)}</text>')
        return "".join(parts)

    def _legend(self) -> str:
        named = [(i, s.name) for i, s in enumerate(self.series) if s.name]
        return "".join(
            f'<circle cx="{_WIDTH - 150}" cy="{_TOP + 8 + 15 * row}" r="4" fill="{_COLOURS[i % 6]}"/>'
            f'<text x="{_WIDTH - 142}" y="{_TOP + 12 + 15 * row}">{escape(name)}</text>'
            for row, (i, name) in enumerate(named)
        )


class _Axis:
    """Values → places between two pixels."""

    def __init__(self, values: Sequence[float], start: float, end: float, *, is_log: bool) -> None:
        positive = [value for value in values if value > 0]
        self._is_log = is_log and bool(positive)
        self._low = min(positive) if self._is_log else min(0.0, *values)
        self._high = max(values)
        if self._high <= self._low:
            self._high = self._low * 2 if self._is_log else self._low + 1
        self._start, self._end = start, end

    def place(self, value: float) -> float:
        if self._is_log:
            share = math.log(max(value, self._low) / self._low) / math.log(self._high / self._low)
        else:
            share = (value - self._low) / (self._high - self._low)
        return self._start + share * (self._end - self._start)

    def ticks(self) -> list[float]:
        if self._is_log:
            lowest, highest = math.floor(math.log10(self._low)), math.ceil(math.log10(self._high))
            found = [m * 10.0**k for k in range(lowest, highest + 1) for m in (1, 2, 5)]
            inside = [value for value in found if self._low <= value <= self._high]
            return inside or [self._low, self._high]
        rough = (self._high - self._low) / 5
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
        return [k * step for k in range(math.ceil(self._low / step), math.floor(self._high / step) + 1)]


def _draw(series: Series, x: _Axis, y: _Axis, colour: str) -> str:
    places = [(x.place(px), y.place(py)) for px, py in series.points]
    dots = "".join(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="{2 if series.is_dots else 3}"/>' for px, py in places)
    if series.is_dots:
        return f'<g fill="{colour}" fill-opacity="0.6">{dots}</g>'
    line = " ".join(f"{px:.1f},{py:.1f}" for px, py in places)
    marks = dots if len(places) <= 40 else ""
    return f'<g fill="{colour}"><polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.8"/>{marks}</g>'


def _short(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:.3g}"


def stacked_bars(title: str, unit: str, parts: Sequence[str], bars: Sequence[tuple[str, Sequence[float]]]) -> str:
    """One horizontal bar for each (name, values); values stand for `parts`, in that order."""
    longest = max((sum(values) for _, values in bars), default=0.0)
    if longest <= 0:
        return ""
    width, step = _WIDTH - 110 - 90, 26
    height = 66 + step * len(bars)
    found = [f'<text x="16" y="18" class="title">{escape(title)}</text>']
    for k, part in enumerate(parts):
        found.append(f'<circle cx="{22 + 130 * k}" cy="36" r="4" fill="{_COLOURS[k % 6]}"/>')
        found.append(f'<text x="{30 + 130 * k}" y="40">{escape(part)}</text>')
    for row, (name, values) in enumerate(bars):
        top, at = 54 + step * row, 110.0
        found.append(f'<text x="104" y="{top + 13}" text-anchor="end">{escape(name)}</text>')
        for k, value in enumerate(values):
            size = max(0.0, value) / longest * width
            found.append(f'<rect x="{at:.1f}" y="{top}" width="{size:.1f}" height="18" fill="{_COLOURS[k % 6]}"/>')
            at += size
        found.append(f'<text x="{at + 5:.1f}" y="{top + 13}">{sum(values):.3g} {escape(unit)}</text>')
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img">{"".join(found)}</svg>'
