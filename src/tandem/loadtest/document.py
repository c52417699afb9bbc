"""A measurement as a file: JSON with every request, and CSV with one line a request."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from tandem import __version__
from tandem.loadtest.bench import Run
from tandem.loadtest.errors import LoadTestError
from tandem.loadtest.goals import Goals
from tandem.loadtest.record import Record
from tandem.loadtest.saturation import Knee
from tandem.loadtest.settings import LoadSettings
from tandem.loadtest.summary import Summary, summarise

VERSION = 1


class RequestRow(msgspec.Struct, kw_only=True):
    """One request; times in milliseconds, except the moments, which are seconds of the run."""

    due_s: float
    sent_s: float
    end_s: float
    status: str
    problem: str
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    chunks: int
    ttft_ms: float | None
    first_content_ms: float | None
    tpot_ms: float | None
    e2el_ms: float
    queue_ms: float | None
    finish_reason: str | None


class RunDocument(msgspec.Struct, kw_only=True):
    settings: LoadSettings
    summary: Summary
    partial: bool
    generator_cpu_share: float
    notes: list[str]
    requests: list[RequestRow]
    tokens_by_second: list[float]


class Document(msgspec.Struct, kw_only=True):
    """What `--json` writes and `compare` reads."""

    version: int
    tool: str
    date: str
    urls: list[str]
    model: str
    endpoint: str
    goals: Goals
    partial: bool
    """The whole was interrupted."""
    runs: list[RunDocument]
    knee: Knee | None = None


def make_document(
    runs: Sequence[Run], *, urls: Sequence[str], model: str, endpoint: str, goals: Goals, knee: Knee | None = None
) -> Document:
    return Document(
        version=VERSION,
        tool=f"tandem {__version__}",
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        urls=list(urls),
        model=model,
        endpoint=endpoint,
        goals=goals,
        partial=any(run.is_partial for run in runs),
        runs=[_run_document(run, goals) for run in runs],
        knee=knee,
    )


def summary_of(run: Run, goals: Goals) -> Summary:
    settings = run.settings
    return summarise(
        run.records,
        goals=goals,
        rate=settings.rate,
        max_concurrency=None if settings.is_open else settings.concurrency,
        is_open=settings.is_open,
        seed=settings.seed,
    )


def _run_document(run: Run, goals: Goals) -> RunDocument:
    from tandem.loadtest.summary import tokens_by_second

    seconds = tokens_by_second([r for r in run.records if r.is_ok], min(r.sent_s for r in run.records))
    return RunDocument(
        settings=run.settings,
        summary=summary_of(run, goals),
        partial=run.is_partial,
        generator_cpu_share=run.cpu_share,
        notes=run.notes,
        requests=[_row(record) for record in run.records],
        tokens_by_second=[float(seconds[k]) for k in range(max(seconds, default=-1) + 1)],
    )


def _row(record: Record) -> RequestRow:
    return RequestRow(
        due_s=round(record.due_s, 6),
        sent_s=round(record.sent_s, 6),
        end_s=round(record.end_s, 6),
        status=record.status,
        problem=record.problem,
        input_tokens=record.input_tokens,
        cached_tokens=record.cached_tokens,
        output_tokens=record.output_tokens,
        chunks=len(record.chunks),
        ttft_ms=_ms(record.ttft_s),
        first_content_ms=_ms(record.first_content_after_s),
        tpot_ms=_ms(record.tpot_s),
        e2el_ms=round(record.e2el_s * 1000, 4),
        queue_ms=_ms(record.queue_s),
        finish_reason=record.finish_reason,
    )


def _ms(time_s: float | None) -> float | None:
    return None if time_s is None else round(time_s * 1000, 4)


def write_json(path: Path, document: Document) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1))


def read_json(path: Path) -> Document:
    """Raises `LoadTestError`."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Document)
    except OSError as error:
        raise LoadTestError(f"{path} can't be read: {error.strerror}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LoadTestError(f"{path} is no report of tandem bench --json: {error}.") from error


def csv_text(document: Document) -> str:
    """A header and one line for each request of each run."""
    out = io.StringIO()
    names = list(RequestRow.__struct_fields__)
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["run", "rate", "concurrency", *names])
    for index, run in enumerate(document.runs):
        for row in run.requests:
            values: list[Any] = [getattr(row, name) for name in names]
            writer.writerow([index, run.settings.rate, run.settings.concurrency, *values])
    return out.getvalue()
