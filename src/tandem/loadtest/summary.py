"""A run's records → its figures. Latencies are of requests that succeeded; all others are counted beside them.

Times in milliseconds, as reports of load tests have them; rates per second over the run's whole duration.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from tandem.loadtest.goals import Goals, meets
from tandem.loadtest.record import Record
from tandem.loadtest.statistics import Figures, figures, percentile


class Summary(msgspec.Struct, kw_only=True):
    """What a report shows of one run."""

    total: int
    ok: int
    errors: int
    incomplete: int
    error_rate: float
    problems: dict[str, int]
    """What went wrong → how often."""
    max_concurrency: int | None
    rate: float | None
    """Configured requests per second; None in a closed loop or a replay."""
    duration_s: float
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    partial_tokens: int
    """Of failed and unfinished requests; in no rate."""
    request_throughput: float
    """Successful requests only, as all throughputs here."""
    goodput: float | None
    goodput_share: float | None
    """Of all requests sent."""
    output_throughput: float
    peak_output_throughput: float
    peak_concurrency: int
    mean_concurrency: float
    total_throughput: float
    token_source: str
    tokens_per_chunk: float
    ttft_ms: Figures | None
    first_content_ms: Figures | None
    tpot_ms: Figures | None
    itl_ms: Figures | None
    icl_ms: Figures | None
    e2el_ms: Figures | None
    queue_ms: Figures | None
    prefill_ms: Figures | None
    e2el_with_failures_ms: dict[str, float | None]
    """Failures count as infinitely slow: None is "never"."""
    lateness_ms: Figures | None
    has_lagged: bool


def summarise(
    records: Sequence[Record],
    *,
    goals: Goals | None = None,
    rate: float | None = None,
    max_concurrency: int | None = None,
    is_open: bool = False,
    seed: int | None = 0,
) -> Summary:
    """`records` of one run, in any order; of at least one request."""
    records = sorted(records, key=lambda record: record.sent_s)
    ok = [record for record in records if record.is_ok]
    errors = [record for record in records if record.status == "error"]
    duration_s = max(1e-9, _end(records) - records[0].sent_s)
    input_tokens, output_tokens = sum(r.input_tokens for r in ok), sum(r.output_tokens for r in ok)
    lateness = figures([r.lateness_s * 1000 for r in records], None) if is_open else None
    ttft = _figures((r.ttft_s for r in ok), seed)
    met = sum(meets(record, goals) for record in records) if goals else None
    return Summary(
        total=len(records),
        ok=len(ok),
        errors=len(errors),
        incomplete=len(records) - len(ok) - len(errors),
        error_rate=len(errors) / len(records),
        problems=dict(Counter(r.problem for r in records if r.problem).most_common(10)),
        max_concurrency=max_concurrency,
        rate=rate,
        duration_s=duration_s,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cached_tokens=sum(r.cached_tokens for r in ok),
        partial_tokens=sum(r.output_tokens for r in records if not r.is_ok),
        request_throughput=len(ok) / duration_s,
        goodput=None if met is None else met / duration_s,
        goodput_share=None if met is None else met / len(records),
        output_throughput=output_tokens / duration_s,
        peak_output_throughput=_peak_tokens(ok),
        peak_concurrency=_peak_concurrency(records),
        mean_concurrency=sum(r.end_s - r.sent_s for r in records) / duration_s,
        total_throughput=(input_tokens + output_tokens) / duration_s,
        token_source=_token_source(ok),
        tokens_per_chunk=output_tokens / max(1, sum(len(r.chunks) for r in ok)),
        ttft_ms=ttft,
        first_content_ms=_figures((r.first_content_after_s for r in ok), seed),
        tpot_ms=_figures((r.tpot_s for r in ok), seed),
        itl_ms=_figures((gap / r.tokens_per_chunk for r in ok for gap in r.chunk_gaps_s), None),
        icl_ms=_figures((gap for r in ok for gap in r.chunk_gaps_s), None),
        e2el_ms=_figures((r.e2el_s for r in ok), seed),
        queue_ms=_figures((r.queue_s for r in ok), None),
        prefill_ms=_figures((r.prefill_s for r in ok), None),
        e2el_with_failures_ms=_with_failures(ok, len(errors)),
        lateness_ms=lateness,
        has_lagged=lateness is not None and lateness.p99 > max(20.0, 0.1 * (ttft.median if ttft else 0.0)),
    )


def _figures(times_s: Iterable[float | None], seed: int | None) -> Figures | None:
    return figures([time_s * 1000 for time_s in times_s if time_s is not None], seed)


def _end(records: Sequence[Record]) -> float:
    return max(record.end_s for record in records)


def _with_failures(ok: Sequence[Record], num_failed: int) -> dict[str, float | None]:
    """Percentiles over successes and failures; those who were still waiting are in neither."""
    ordered = sorted(r.e2el_s * 1000 for r in ok) + [math.inf] * num_failed
    if not ordered:
        return {}
    found = {f"p{q}": percentile(ordered, q) for q in (50, 90, 99)}
    return {name: value if math.isfinite(value) else None for name, value in found.items()}


def _token_source(ok: Sequence[Record]) -> str:
    if not ok:
        return "none"
    reported = sum(record.completion_tokens is not None for record in ok)
    return "usage" if reported == len(ok) else "chunks" if reported == 0 else "usage and chunks"


def tokens_by_second(ok: Iterable[Record], start_s: float) -> Counter[int]:
    """Second of the run → output tokens in it; a chunk counts for as many as its answer's chunks hold on average."""
    found: Counter[int] = Counter()
    for record in ok:
        share = record.output_tokens / len(record.chunks) if record.chunks else 0.0
        for at_s in record.chunks:
            found[int(at_s - start_s)] += share  # type: ignore[assignment]
    return found


def _peak_tokens(ok: Sequence[Record]) -> float:
    start_s = min((r.sent_s for r in ok), default=0.0)
    return float(max(tokens_by_second(ok, start_s).values(), default=0.0))


def concurrency_changes(records: Iterable[Record]) -> list[tuple[float, int]]:
    """(time, requests open from then on), in order."""
    changes = sorted([(r.sent_s, 1) for r in records] + [(r.end_s, -1) for r in records])
    found, open_now = [], 0
    for at_s, change in changes:
        open_now += change
        found.append((at_s, open_now))
    return found


def _peak_concurrency(records: Sequence[Record]) -> int:
    return max((count for _, count in concurrency_changes(records)), default=0)
