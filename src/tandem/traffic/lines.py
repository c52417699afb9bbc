"""Reading data files line by line, with errors that name the file, the line, and what was expected there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from tandem.core.errors import TandemError


class DatasetError(TandemError):
    """A data file that can't be read, or says something impossible."""


def wrong_line(path: Path, number: int, problem: str, expected: str) -> DatasetError:
    """`number` counts from 1, as editors do."""
    return DatasetError(f"{path}:{number}: {problem}. Expected {expected}.")


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines that hold something, with their numbers. A last line without its newline is a line like any other."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise DatasetError(f"{path} can't be read: {error.strerror}.") from error
    with file:
        for number, line in enumerate(file, 1):
            stripped = line.strip()
            if stripped:
                yield number, stripped


def decode_line(path: Path, number: int, line: bytes, decoder: msgspec.json.Decoder[Any], expected: str) -> Any:
    """One JSON line as what `decoder` makes of it. Raises `DatasetError`."""
    try:
        return decoder.decode(line)
    except msgspec.ValidationError as error:
        problem = str(error).replace(" - at `$.", " at `").replace("`$`", "the line")
        raise wrong_line(path, number, problem, expected) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise wrong_line(path, number, f"this is not JSON ({error})", expected) from error
