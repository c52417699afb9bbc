"""Mooncake's traces: JSON lines with arrival, lengths, and the ids of the prompt's 512-token blocks.

An id names a block *and all that stands before it*, so two prompts share exactly as much as their leading ids agree.
Each row is checked against itself: published traces have had impossible counts that nobody noticed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from tandem.traffic.lines import DatasetError, decode_line, read_lines, wrong_line
from tandem.traffic.trace import TraceRow

BLOCK_TOKENS: Final = 512
_EXPECTED: Final = (
    '{"timestamp": milliseconds, "input_length": tokens, "output_length": tokens, "hash_ids": [an id for each block]}'
)


class _Line(msgspec.Struct):
    timestamp: float
    """Milliseconds."""
    input_length: int
    output_length: int
    hash_ids: list[int] = []


def read_mooncake(path: Path, block_tokens: int = BLOCK_TOKENS) -> list[TraceRow]:
    """Rows in order of arrival. Raises `DatasetError` with file and line."""
    decoder = msgspec.json.Decoder(_Line)
    found = []
    for number, line in read_lines(path):
        row: _Line = decode_line(path, number, line, decoder, _EXPECTED)
        _check(path, number, row, block_tokens)
        size = block_tokens if row.hash_ids else 0
        found.append(TraceRow(row.timestamp / 1000, row.input_length, row.output_length, tuple(row.hash_ids), size))
    if not found:
        raise DatasetError(f"{path} has no requests.")
    found.sort(key=lambda row: row.at_s)
    return found


def _check(path: Path, number: int, row: _Line, block_tokens: int) -> None:
    if row.input_length < 1 or row.output_length < 0:
        lengths = f"input_length {row.input_length}, output_length {row.output_length}"
        raise wrong_line(path, number, lengths, "at least one token in, none or more out")
    expected = -(-row.input_length // block_tokens)
    if row.hash_ids and len(row.hash_ids) != expected:
        problem = f"{len(row.hash_ids)} hash_ids for input_length {row.input_length}"
        raise wrong_line(path, number, problem, f"ceil({row.input_length}/{block_tokens}) = {expected}")
