"""A summary as text, with the labels that people know from vLLM's benchmark."""

from __future__ import annotations

from tandem.loadtest.document import Document, RunDocument
from tandem.loadtest.statistics import Figures
from tandem.loadtest.summary import Summary

_WIDTH = 66
Row = tuple[str, str]


def text_report(summary: Summary, notes: list[str], *, is_partial: bool = False) -> str:
    """Plain lines; a partial run says so in the first."""
    title = " Serving Benchmark Result " + ("(PARTIAL: interrupted) " if is_partial else "")
    lines = [f"{title:=^{_WIDTH}}", *(_line(*row) for row in rows(summary))]
    for heading, name, found in latencies(summary):
        lines += [f"{heading:-^{_WIDTH}}", *(_line(*row) for row in _figure_rows(name, found))]
    if failing := _failure_rows(summary):
        lines += [f"{'Failures':-^{_WIDTH}}", *(_line(*row) for row in failing)]
    lines.append("=" * _WIDTH)
    return "\n".join([*lines, *(f"Note: {note}" for note in [*warnings(summary), *notes])])


def text_sweep(document: Document) -> str:
    """A line for each load, then the knee."""
    header = (
        f"{'load':>12}{'req/s':>9}{'tok/s':>9}{'TTFT p50':>10}{'p99':>9}{'TPOT p50':>10}{'goodput':>9}{'failed':>8}"
    )
    lines = ["PARTIAL: interrupted."] if document.partial else []
    lines += [header, *(_sweep_line(run) for run in document.runs)]
    if (knee := document.knee) is not None:
        found = f"Knee: {knee.rate:.3g} requests/s"
        lines.append(
            f"{found}; at {knee.broke_at:.3g}, {knee.why}." if knee.broke_at else f"{found} or more: none broke."
        )
    notes = [note for run in document.runs for note in run.notes]
    lagged = [
        f"{_load(run)} LAGGED: it measures the load generator." for run in document.runs if run.summary.has_lagged
    ]
    return "\n".join([*lines, *(f"Note: {note}" for note in [*notes, *lagged])])


def _load(run: RunDocument) -> str:
    return f"{run.settings.rate:.3g}/s" if run.settings.rate else f"{run.settings.concurrency} open"


def _sweep_line(run: RunDocument) -> str:
    s = run.summary
    ttft, tail = (f"{s.ttft_ms.median:.1f}", f"{s.ttft_ms.p99:.1f}") if s.ttft_ms else ("–", "–")
    tpot = f"{s.tpot_ms.median:.1f}" if s.tpot_ms else "–"
    goodput = "–" if s.goodput is None else f"{s.goodput:.2f}"
    rates = f"{_load(run):>12}{s.request_throughput:>9.2f}{s.output_throughput:>9.1f}"
    return f"{rates}{ttft:>10}{tail:>9}{tpot:>10}{goodput:>9}{s.errors:>8}"


def rows(summary: Summary) -> list[Row]:
    """Counts and rates, in the customary order."""
    found = [
        ("Successful requests:", f"{summary.ok}"),
        ("Failed requests:", f"{summary.errors}"),
        ("Incomplete requests:", f"{summary.incomplete}"),
        ("Error rate (%):", f"{summary.error_rate * 100:.2f}"),
    ]
    if summary.max_concurrency is not None:
        found.append(("Maximum request concurrency:", f"{summary.max_concurrency}"))
    if summary.rate is not None:
        found.append(("Request rate configured (RPS):", f"{summary.rate:.2f}"))
    found += [
        ("Benchmark duration (s):", f"{summary.duration_s:.2f}"),
        ("Total input tokens:", f"{summary.input_tokens}"),
        ("Total generated tokens:", f"{summary.output_tokens}"),
        ("Request throughput (req/s):", f"{summary.request_throughput:.2f}"),
    ]
    if summary.goodput is not None and summary.goodput_share is not None:
        found.append(("Request goodput (req/s):", f"{summary.goodput:.2f}"))
        found.append(("Requests within goals (%):", f"{summary.goodput_share * 100:.1f}"))
    return [
        *found,
        ("Output token throughput (tok/s):", f"{summary.output_throughput:.2f}"),
        ("Peak output token throughput (tok/s):", f"{summary.peak_output_throughput:.2f}"),
        ("Peak concurrent requests:", f"{summary.peak_concurrency}"),
        ("Total token throughput (tok/s):", f"{summary.total_throughput:.2f}"),
        ("Cached input tokens:", f"{summary.cached_tokens}"),
        ("Output tokens counted by:", summary.token_source),
    ]


def latencies(summary: Summary) -> list[tuple[str, str, Figures]]:
    """(heading, short name, figures) of each time that was measured."""
    found = [
        ("Time to First Token", "TTFT", summary.ttft_ms),
        ("Time to First Content (after reasoning)", "TTFC", _unless_same(summary.first_content_ms, summary.ttft_ms)),
        ("Time per Output Token (excl. 1st token)", "TPOT", summary.tpot_ms),
        ("Inter-token Latency", "ITL", summary.itl_ms),
        ("Inter-chunk Latency", "ICL", _unless_same(summary.icl_ms, summary.itl_ms)),
        ("End-to-end Latency", "E2EL", summary.e2el_ms),
        ("Send Lateness (of the load generator)", "lateness", summary.lateness_ms),
    ]
    return [(heading, name, figures) for heading, name, figures in found if figures is not None]


def warnings(summary: Summary) -> list[str]:
    """What a reader must know before believing the figures."""
    found = []
    if summary.has_lagged and summary.lateness_ms is not None:
        late = f"P99 {summary.lateness_ms.p99:.0f} ms"
        found.append(
            f"LAGGED: requests were sent late ({late}). This run measures the load generator, not the endpoint."
        )
    if summary.tokens_per_chunk > 1.05:
        found.append(
            f"A chunk holds {summary.tokens_per_chunk:.1f} tokens on average: ITL spreads each gap over its tokens, "
            "ICL is the gap."
        )
    if summary.errors or summary.incomplete:
        found.append("Latencies and throughputs are of the successful requests only.")
    if 0 < summary.ok < 100 and summary.ttft_ms is not None:
        found.append(f"P99 of {summary.ok} requests is little more than their maximum.")
    return found


def _failure_rows(summary: Summary) -> list[Row]:
    if not (summary.errors or summary.incomplete):
        return []
    found = [(f"{problem[: _WIDTH - 10]}:", str(count)) for problem, count in summary.problems.items()]
    for name, value in summary.e2el_with_failures_ms.items():
        shown = "infinite" if value is None else f"{value:.2f}"
        found.append((f"{name.upper()} E2EL, failures as infinite (ms):", shown))
    return [*found, ("Tokens of failed and incomplete requests:", f"{summary.partial_tokens}")]


def _figure_rows(name: str, figures: Figures) -> list[Row]:
    bounds = (("Mean", figures.mean, figures.mean_ci), ("Median", figures.median, figures.median_ci),
              ("P99", figures.p99, figures.p99_ci))  # fmt: skip
    return [
        (f"{label} {name} (ms):", f"{value:.2f}" + (f"  [{ci.low:.2f}, {ci.high:.2f}]" if ci else ""))
        for label, value, ci in bounds
    ]


def _unless_same(figures: Figures | None, other: Figures | None) -> Figures | None:
    if figures is None or other is None:
        return None
    return None if abs(figures.mean - other.mean) <= 0.01 * other.mean else figures


def _line(label: str, value: str) -> str:
    return f"{label:<42} {value:<10}".rstrip()
