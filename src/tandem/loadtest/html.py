"""A measurement as one HTML file that needs nothing else: figures, and the plots that people expect of a load test."""

from __future__ import annotations

from html import escape

from tandem.loadtest.document import Document, RunDocument
from tandem.loadtest.report import latencies, rows, warnings
from tandem.loadtest.statistics import Figures
from tandem.loadtest.svg import Chart, Point, Series, stacked_bars

_MAX_DOTS = 4000
_STYLE = """
body{font:14px/1.5 system-ui,sans-serif;max-width:1180px;margin:24px auto;padding:0 16px;color:#1f2937;background:#fff}
h1{font-size:22px}h2{font-size:17px;margin-top:28px}.charts{display:flex;flex-wrap:wrap;gap:16px}
svg{width:560px;max-width:100%;border:1px solid #e5e7eb;border-radius:6px}svg text{font-size:11px;fill:#4b5563}
svg .title{font-size:13px;font-weight:600;fill:#111827}.grid{stroke:#e5e7eb}.knee{stroke:#111827;stroke-dasharray:4 3}
table{border-collapse:collapse}td,th{padding:3px 14px 3px 0;text-align:left;border-bottom:1px solid #e5e7eb}
td:not(:first-child),th:not(:first-child){text-align:right}.note{background:#fef3c7;padding:6px 10px;border-radius:6px}
"""


def html_report(document: Document) -> str:
    title = f"Load test of {document.model}"
    parts = [f"<h1>{escape(title)}</h1>", f"<p>{escape(_about(document))}</p>"]
    if document.partial:
        parts.append('<p class="note"><b>PARTIAL: the test was interrupted.</b></p>')
    if document.knee is not None:
        parts.append(f"<p>{escape(_knee_text(document))}</p>")
    if len(document.runs) > 1:
        parts += ["<h2>Over the loads</h2>", _charts(sweep_charts(document)), _sweep_table(document)]
    parts += ["<h2>Where the time goes, at the peak</h2>", _peak_breakdown(document)]
    for run in document.runs:
        parts.append(_run_part(run))
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    return f"<!doctype html><html lang=en><head>{head}</head><body>{''.join(parts)}</body></html>\n"


def sweep_charts(document: Document) -> list[Chart]:
    """Latency over rate, throughput over concurrency, latency over throughput, breakdown at the peak."""
    runs = sorted(document.runs, key=lambda run: run.summary.mean_concurrency)
    knee = document.knee.rate if document.knee is not None else None
    is_rates = all(run.settings.rate is not None for run in runs)
    loads = [run.settings.rate or float(run.settings.concurrency or 0) for run in runs]
    x_label = "requests per second" if is_rates else "concurrency"
    over_load = Chart(f"Latency over {'rate' if is_rates else 'concurrency'}", x_label, "ms",
                      is_log_x=True, is_log_y=True, marked_x=knee)  # fmt: skip
    over_throughput = Chart("Latency over throughput", "output tokens per second", "ms", is_log_y=True)
    for name in ("ttft_ms", "tpot_ms", "e2el_ms"):
        for label, attribute in (("median", "median"), ("P99", "p99")):
            pairs = [(load, run, _figure(run, name)) for load, run in zip(loads, runs, strict=True)]
            title = f"{name[:-3].upper()} {label}"
            over_load.series.append(Series(title, [(x, getattr(f, attribute)) for x, _, f in pairs if f]))
            if label == "median":
                points = [(run.summary.output_throughput, f.median) for _, run, f in pairs if f]
                over_throughput.series.append(Series(title, points))
    throughput = Chart("Token throughput over concurrency", "mean open requests", "tokens per second", [
        Series("output", [(run.summary.mean_concurrency, run.summary.output_throughput) for run in runs]),
        Series("input and output", [(run.summary.mean_concurrency, run.summary.total_throughput) for run in runs]),
    ])  # fmt: skip
    return [over_load, throughput, over_throughput]


def run_charts(run: RunDocument) -> list[Chart]:
    """The timeline and the distributions of one run."""
    ok = [row for row in run.requests if row.status == "ok"]
    every = max(1, len(ok) // _MAX_DOTS)
    timeline = Chart("Time to first token over the run", "second of the run", "ms", [
        Series("TTFT", [(row.sent_s, row.ttft_ms) for row in ok[::every] if row.ttft_ms is not None], is_dots=True)
    ])  # fmt: skip
    tokens = Chart("Output tokens by second", "second of the run", "tokens", [
        Series("", [(float(second), count) for second, count in enumerate(run.tokens_by_second)])
    ])  # fmt: skip
    open_requests = Chart("Open requests", "second of the run", "requests", [Series("", _open_points(run))])
    spread = Chart("Distributions", "ms", "share of requests at most so slow", is_log_x=True)
    for name in ("ttft_ms", "tpot_ms", "e2el_ms"):
        values = sorted(value for row in ok if (value := getattr(row, name)))
        spread.series.append(Series(name[:-3].upper(), _distribution(values)))
    return [timeline, tokens, open_requests, spread]


def _open_points(run: RunDocument) -> list[Point]:
    changes = sorted([(row.sent_s, 1) for row in run.requests] + [(row.end_s, -1) for row in run.requests])
    found: list[Point] = []
    count = 0
    for at_s, change in changes:
        count += change
        found.append((at_s, float(count)))
    return found[:: max(1, len(found) // _MAX_DOTS)]


def _distribution(values: list[float]) -> list[Point]:
    if not values:
        return []
    return [(values[round(q / 200 * (len(values) - 1))], q / 200) for q in range(201)]


def _run_part(run: RunDocument) -> str:
    settings = run.settings
    load = f"{settings.rate:g} requests per second" if settings.rate else "replayed arrivals" if settings.replay else ""
    heading = load or f"{settings.concurrency or 8} requests at a time"
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in [*warnings(run.summary), *run.notes])
    counts = "".join(f"<tr><td>{escape(label)}</td><td>{escape(value)}</td></tr>" for label, value in rows(run.summary))
    times = "".join(_figure_row(name, heading, figures) for heading, name, figures in latencies(run.summary))
    header = "<tr><th>ms</th><th>mean</th><th>median</th><th>P90</th><th>P99</th><th>max</th></tr>"
    return (
        f"<h2>{escape(heading)}</h2>{notes}{_charts(run_charts(run))}"
        f"<br><table>{header}{times}</table><br><table>{counts}</table>"
    )


def _peak_breakdown(document: Document) -> str:
    """Of mean requests, the run with the highest output throughput first; the others follow for comparison."""
    runs = sorted(document.runs, key=lambda run: -run.summary.output_throughput)
    measured = [run for run in runs if run.summary.e2el_ms is not None and run.summary.ttft_ms is not None]
    if measured and all(run.summary.queue_ms is not None and run.summary.prefill_ms is not None for run in measured):
        bars = [(_load_name(run), _engine_parts(run)) for run in measured]
        return stacked_bars("Mean request", "ms", ("waiting", "prefill", "decode", "rest"), bars)
    bars = [(_load_name(run), _client_parts(run)) for run in measured]
    return stacked_bars("Mean request", "ms", ("to first token", "after it"), bars)


def _engine_parts(run: RunDocument) -> list[float]:
    """Where the endpoint says how long a request waited: waiting, prefill, decode, and what is on the way."""
    summary = run.summary
    waiting, prefill = _mean(summary.queue_ms), _mean(summary.prefill_ms)
    to_first, total = _mean(summary.ttft_ms), _mean(summary.e2el_ms)
    return [waiting, prefill, total - to_first, max(0.0, to_first - waiting - prefill)]


def _client_parts(run: RunDocument) -> list[float]:
    to_first, total = _mean(run.summary.ttft_ms), _mean(run.summary.e2el_ms)
    return [to_first, total - to_first]


def _mean(figures: Figures | None) -> float:
    return figures.mean if figures is not None else 0.0


def _load_name(run: RunDocument) -> str:
    settings = run.settings
    return (
        f"{settings.rate:.3g}/s"
        if settings.rate
        else "replay"
        if settings.replay
        else f"{settings.concurrency or 8} open"
    )


def _figure_row(name: str, heading: str, figures: Figures) -> str:
    values = (figures.mean, figures.median, figures.p90, figures.p99, figures.max)
    cells = "".join(f"<td>{value:.2f}</td>" for value in values)
    return f'<tr><td title="{escape(heading)}">{escape(name)}</td>{cells}</tr>'


def _sweep_table(document: Document) -> str:
    header = "<tr><th>load</th><th>req/s</th><th>output tok/s</th><th>median TTFT</th><th>P99 TTFT</th>"
    header += "<th>median TPOT</th><th>goodput req/s</th><th>failed</th></tr>"
    body = "".join(_sweep_row(run) for run in document.runs)
    return f"<table>{header}{body}</table>"


def _sweep_row(run: RunDocument) -> str:
    s = run.summary
    ttft, tpot = s.ttft_ms, s.tpot_ms
    goodput = "" if s.goodput is None else f"{s.goodput:.2f}"
    rates = (f"{s.request_throughput:.2f}", f"{s.output_throughput:.1f}")
    times = (_cell(ttft, "median"), _cell(ttft, "p99"), _cell(tpot, "median"))
    values = (_load_name(run), *rates, *times, goodput, str(s.errors))
    return "<tr>" + "".join(f"<td>{value}</td>" for value in values) + "</tr>"


def _cell(figures: Figures | None, name: str) -> str:
    return "" if figures is None else f"{getattr(figures, name):.1f}"


def _figure(run: RunDocument, name: str) -> Figures | None:
    found: Figures | None = getattr(run.summary, name)
    return found


def _charts(charts: list[Chart]) -> str:
    return f'<div class="charts">{"".join(chart.render() for chart in charts)}</div>'


def _about(document: Document) -> str:
    return f"{document.endpoint} at {', '.join(document.urls)}, {document.date}, {document.tool}."


def _knee_text(document: Document) -> str:
    knee = document.knee
    assert knee is not None
    if knee.broke_at is None:
        return f"The load held up to {knee.rate:g} requests per second, the highest that was tried."
    return f"The knee: {knee.rate:.3g} requests per second held; at {knee.broke_at:.3g}, {knee.why}."
