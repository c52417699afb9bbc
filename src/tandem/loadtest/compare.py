"""Two measurements side by side: the difference of each figure, and whether it is more than noise.

The noise is what a block bootstrap of each run's own requests shows: where 95 % of the resampled differences lie on one
side of zero, the difference is real *within these two runs*. It knows nothing of what differs between any two runs on
a busy machine; measure each side several times, in turn, before believing a small one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tandem.loadtest.document import Document, RequestRow, RunDocument
from tandem.loadtest.errors import LoadTestError
from tandem.loadtest.statistics import Interval, bootstrap, interval, mean, median, p99

_SLICES = 20


class Difference(NamedTuple):
    """One figure of both. `change` is relative to the first; `ci` of `change`, None where it can't be told."""

    name: str
    first: float
    second: float
    change: float
    ci: Interval | None

    @property
    def is_noise(self) -> bool:
        return self.ci is None or self.ci.low <= 0 <= self.ci.high


def compare(first: Document, second: Document) -> list[tuple[str, list[Difference]]]:
    """(which load, differences) for each pair of runs with the same load. Raises `LoadTestError` where none match."""
    pairs = [(a, b) for a in first.runs for b in second.runs if _load(a) == _load(b)]
    if not pairs and len(first.runs) == len(second.runs) == 1:
        pairs = [(first.runs[0], second.runs[0])]
    if not pairs:
        raise LoadTestError("the two files have no load in common: run both with the same rates or concurrencies.")
    return [(_shown(a), _differences(a, b)) for a, b in pairs]


def warnings(first: Document, second: Document) -> list[str]:
    """What makes the comparison unfair."""
    found = []
    for name in ("dataset", "dataset_path", "input_len", "output_len", "rate", "concurrency", "scale_lengths"):
        a, b = (getattr(document.runs[0].settings, name) for document in (first, second))
        if a != b and len(first.runs) == len(second.runs) == 1:
            found.append(f"The workloads differ: {name} is {a} and {b}.")
    for label, document in (("first", first), ("second", second)):
        if document.partial:
            found.append(f"The {label} is partial: it was interrupted.")
        if any(run.summary.has_lagged for run in document.runs):
            found.append(f"The {label} lagged: it measures its load generator.")
    return found


def _load(run: RunDocument) -> tuple[float | None, int | None, str]:
    return run.settings.rate, run.settings.concurrency, run.settings.dataset


def _shown(run: RunDocument) -> str:
    settings = run.settings
    if settings.rate is not None:
        return f"{settings.rate:g} requests/s"
    return "replay" if settings.replay else f"concurrency {settings.concurrency or 'default'}"


def _differences(a: RunDocument, b: RunDocument) -> list[Difference]:
    found = [
        _rate("Request throughput (req/s)", a, b, lambda row: 1.0),
        _rate("Output token throughput (tok/s)", a, b, lambda row: float(row.output_tokens)),
    ]
    for label, name in (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms"), ("E2EL", "e2el_ms")):
        values = [_ok_values(run, name) for run in (a, b)]
        if all(values):
            found += _latencies(label, values[0], values[1])
    failing = a.summary.error_rate * 100, b.summary.error_rate * 100
    if any(failing):
        found.append(Difference("Error rate (%)", *failing, _change(*failing), None))
    return found


def _ok_values(run: RunDocument, name: str) -> list[float]:
    rows = sorted((row for row in run.requests if row.status == "ok"), key=lambda row: row.sent_s)
    return [value for row in rows if (value := getattr(row, name)) is not None]


def _latencies(label: str, a: Sequence[float], b: Sequence[float]) -> list[Difference]:
    statistics = (mean, median, p99)
    drawn = zip(bootstrap(a, statistics, 1), bootstrap(b, statistics, 2), strict=True)
    found = []
    for name, statistic, (from_a, from_b) in zip(("Mean", "Median", "P99"), statistics, drawn, strict=True):
        first, second = statistic(sorted(a)), statistic(sorted(b))
        found.append(_difference(f"{name} {label} (ms)", first, second, from_a, from_b))
    return found


def _rate(name: str, a: RunDocument, b: RunDocument, weight: Callable[[RequestRow], float]) -> Difference:
    """Rates vary over a run: its equal slices are what is resampled."""
    slices = [_by_slice(run, weight) for run in (a, b)]
    first, second = (mean(values) for values in slices)
    drawn = [bootstrap(values, (mean,), seed)[0] for seed, values in enumerate(slices)]
    return _difference(name, first, second, *drawn)


def _by_slice(run: RunDocument, weight: Callable[[RequestRow], float]) -> list[float]:
    """What finished in each slice of the run, per second."""
    start_s = min(row.sent_s for row in run.requests)
    length_s = run.summary.duration_s / _SLICES
    totals = [0.0] * _SLICES
    for row in run.requests:
        if row.status == "ok":
            totals[min(_SLICES - 1, int((row.end_s - start_s) / length_s))] += weight(row)
    return [total / length_s for total in totals]


def _difference(name: str, first: float, second: float, from_a: Sequence[float], from_b: Sequence[float]) -> Difference:
    changes = [_change(x, y) for x, y in zip(from_a, from_b, strict=False)]
    return Difference(name, first, second, _change(first, second), interval(changes))


def _change(first: float, second: float) -> float:
    return (second - first) / first if first else 0.0 if first == second else float("inf")


def text_comparison(groups: list[tuple[str, list[Difference]]], notes: list[str]) -> str:
    """A table for each load."""
    lines = []
    for load, differences in groups:
        lines.append(f"{load:<34}{'first':>12}{'second':>12}{'change':>9}   95 % interval")
        lines += [_line(difference) for difference in differences]
    return "\n".join([*lines, *(f"Note: {note}" for note in notes)])


def _line(difference: Difference) -> str:
    name, first, second, change, ci = difference
    span = f"[{ci.low:+7.1%}, {ci.high:+7.1%}]  {'noise' if difference.is_noise else 'REAL'}" if ci else ""
    return f"{name:<34}{first:>12.2f}{second:>12.2f}{change:>+9.1%}   {span}".rstrip()
