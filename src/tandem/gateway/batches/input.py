"""Input files, line by line: checked as a whole before anything runs, and read again while it runs.

One rule for every fault: the batch goes to `failed` with the line (counted from 1 in the file) and what is wrong with
it, and no line of it runs. Blank lines are passed over; a byte order mark and Windows' line ends are taken.
"""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from tandem.config.gateway_store import BatchesConfig
from tandem.core.errors import InvalidRequest
from tandem.protocol.batch import BatchErrorItem, BatchRequestLine, decode_batch_line

MAX_ERRORS: Final = 100
"""Told of one file; more don't help anybody."""
MAX_CUSTOM_ID_CHARS: Final = 512
_BYTES_IN_MIB: Final = 1 << 20


class InputLine(NamedTuple):
    """One request of a batch that has been checked."""

    number: int
    """In the file, from 1."""
    custom_id: str
    body: bytes
    """JSON, as the client wrote it."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What checking found. With errors, nothing may run."""

    num_lines: int
    errors: list[BatchErrorItem]
    model: str | None = None
    """The one that the lines name, if they name one."""


class _Body(msgspec.Struct):
    custom_id: str
    body: msgspec.Raw


_body_decoder: Final = msgspec.json.Decoder(_Body)


def check_input(path: Path, endpoint: str, config: BatchesConfig) -> Checked:
    """Reads all of it; blocks. Raises `OSError`."""
    errors: list[BatchErrorItem] = []
    seen: dict[bytes, int] = {}
    models: set[str] = set()
    num_lines = 0
    for number, line in raw_lines(path, _max_bytes(config)):
        num_lines += 1
        if num_lines > config.max_lines:
            errors.append(_item("too_many_lines", f"The file has more than {config.max_lines} requests.", number))
            break
        error = _check_line(number, line, endpoint, seen, models)
        if error is not None:
            errors.append(error)
            if len(errors) >= MAX_ERRORS:
                break
    if not num_lines and not errors:
        errors.append(_item("empty_file", "The file has no requests: it must have one JSON object a line.", None))
    return Checked(num_lines, errors, models.pop() if len(models) == 1 else None)


def read_input(path: Path, config: BatchesConfig) -> Iterator[InputLine]:
    """The lines of a file that was checked; blocks. Raises `OSError`."""
    for number, line in raw_lines(path, _max_bytes(config)):
        assert line is not None, "a line grew after it was checked"
        decoded = _body_decoder.decode(line)
        yield InputLine(number, decoded.custom_id, bytes(decoded.body))


def raw_lines(path: Path, max_bytes: int) -> Iterator[tuple[int, bytes | None]]:
    """(number, line without its end), blank ones left out. None for one that is too long; it is never held whole."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(max_bytes + 2):
            number += 1
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            is_long = len(line.rstrip(b"\r\n")) > max_bytes
            while line and not line.endswith(b"\n"):
                # The rest of a long line; of an ordinary last one, nothing.
                rest = file.readline(1 << 20)
                if not rest:
                    break
                is_long, line = True, rest
            if is_long:
                yield number, None
            elif line := line.strip():
                yield number, line


def _check_line(
    number: int, line: bytes | None, endpoint: str, seen: dict[bytes, int], models: set[str]
) -> BatchErrorItem | None:
    if line is None:
        return _item("line_too_long", "The line is longer than one request may be.", number)
    try:
        request = decode_batch_line(line)
    except InvalidRequest as error:
        return _item("invalid_json_line", error.message, number, error.param)
    if len(request.custom_id) > MAX_CUSTOM_ID_CHARS:
        return _item("invalid_custom_id", f"custom_id is longer than {MAX_CUSTOM_ID_CHARS}.", number, "custom_id")
    if request.url != endpoint:
        message = f"url is {request.url!r:.80}, but the batch is for {endpoint}."
        return _item("mismatched_endpoint", message, number, "url")
    _note_model(request, models)
    # A digest, not the name: fifty thousand long names would be much memory.
    first = seen.setdefault(_digest(request.custom_id), number)
    if first != number:
        message = f"custom_id {request.custom_id!r:.80} stands in line {first} too; every line needs its own."
        return _item("duplicate_custom_id", message, number, "custom_id")
    return None


def _note_model(request: BatchRequestLine, models: set[str]) -> None:
    model = request.body.get("model")
    if isinstance(model, str) and len(models) < 2:
        models.add(model[:255])


def _digest(custom_id: str) -> bytes:
    return hashlib.blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _max_bytes(config: BatchesConfig) -> int:
    return int(config.max_line_mib * _BYTES_IN_MIB)


def _item(code: str, message: str, line: int | None, param: str | None = None) -> BatchErrorItem:
    return BatchErrorItem(code=code, message=message, line=line, param=param)
