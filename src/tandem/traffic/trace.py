"""What a trace records of a request: when, how long, and which parts of the prompt it shared. Never its text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One recorded request."""

    at_s: float
    """Arrival, in seconds after the trace's first request."""
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()
    """One for each block of the prompt, the last maybe partial; equal ids at the start mean an equal prefix."""
    block_tokens: int = 0
    """Tokens in a block; 0 where the trace records no blocks."""


def read_trace(path: Path) -> list[TraceRow]:
    """An Azure CSV or a Mooncake JSONL file, told apart by the name's end. Raises `DatasetError`."""
    from tandem.traffic.azure import read_azure
    from tandem.traffic.mooncake import read_mooncake

    return read_azure(path) if path.suffix.lower() == ".csv" else read_mooncake(path)


def cut(rows: Sequence[TraceRow], num_requests: int | None, duration_s: float | None) -> list[TraceRow]:
    """The beginning of a trace: at most so many requests, and of at most so many recorded seconds."""
    found = [row for row in rows if duration_s is None or row.at_s < duration_s]
    return found[:num_requests]
