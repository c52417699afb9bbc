"""Azure's public inference traces: `TIMESTAMP,ContextTokens,GeneratedTokens`, one request a line.

The time has seven fractional digits, which is one more than `datetime` reads, and the last line has no newline.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tandem.traffic.lines import DatasetError, read_lines, wrong_line
from tandem.traffic.trace import TraceRow

COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_EXPECTED: Final = "TIMESTAMP,ContextTokens,GeneratedTokens as in 2023-11-16 18:15:46.6805900,374,44"


def read_azure(path: Path) -> list[TraceRow]:
    """Rows in order of arrival. Raises `DatasetError` with file and line."""
    lines = read_lines(path)
    number, header = next(lines, (1, b""))
    names = [name.strip() for name in header.decode("utf-8-sig", "replace").split(",")]
    if names[:3] != list(COLUMNS):
        given = ", ".join(names) or "missing"
        raise wrong_line(path, number, f"the columns are {given}", f"the header {','.join(COLUMNS)}")
    found = [_row(path, number, line.decode("utf-8", "replace")) for number, line in lines]
    if not found:
        raise DatasetError(f"{path} has a header and no requests.")
    found.sort(key=lambda row: row.at_s)
    start_s = found[0].at_s
    return [TraceRow(row.at_s - start_s, row.input_tokens, row.output_tokens) for row in found]


def _row(path: Path, number: int, line: str) -> TraceRow:
    """One line, its time still in seconds since 1970."""
    fields = line.split(",")
    if len(fields) < 3:
        raise wrong_line(path, number, f"{len(fields)} fields instead of 3", _EXPECTED)
    try:
        at_s, tokens = _seconds(fields[0].strip()), (int(fields[1]), int(fields[2]))
    except ValueError as error:
        raise wrong_line(path, number, f"{line!r} can't be read ({error})", _EXPECTED) from error
    if min(tokens) < 0:
        raise wrong_line(path, number, f"{line!r} has a negative count", _EXPECTED)
    return TraceRow(at_s, *tokens)


def _seconds(text: str) -> float:
    """Seconds since 1970 (UTC); the fraction may have any number of digits."""
    whole, _, fraction = text.partition(".")
    moment = datetime.strptime(whole, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
    if fraction and not fraction.isdigit():
        raise ValueError(f"fraction {fraction!r}")
    return moment.timestamp() + (int(fraction) / 10 ** len(fraction) if fraction else 0.0)
