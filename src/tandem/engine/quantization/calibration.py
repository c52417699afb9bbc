"""The text that calibration runs the network over: the user's, or a sample of the project's own writing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from itertools import takewhile
from pathlib import Path

import torch
from torch import Tensor

from tandem.core.errors import ConfigError

Encode = Callable[[str], list[int]]

MIN_TOKENS = 512
"""Fewer say too little about which channels are large."""
MAX_TOKENS = 8192
"""More change little and cost time and memory."""
SEQUENCE_LENGTH = 256
MAX_FILE_BYTES = 64 << 20
OWN_SAMPLE = "Tandem's own sample"


@dataclass(frozen=True, slots=True)
class Calibration:
    """Token ids [sequences, length], and where they come from."""

    tokens: Tensor
    source: str
    sha256: str
    """Of the text, so that a build can tell whether it is the same again."""

    @property
    def num_tokens(self) -> int:
        return self.tokens.numel()


def own_sample() -> str:
    """Prose, talk, code, tables and a few words of other languages, written for this."""
    return _shipped("calibration.txt")


def held_out_text() -> str:
    """What quality is measured on: no part of the calibration text. Its making is told in docs/quantization.md."""
    return _shipped("heldout.txt")


def _shipped(name: str) -> str:
    return (files("tandem.engine.quantization") / name).read_text(encoding="utf-8")


def read_calibration(encode: Encode, path: Path | None = None) -> Calibration:
    """The text at `path`, or the own sample, as tokens. encode: text → ids, with BOS in front where the model wants it.

    Raises `ConfigError`.
    """
    text, source = (own_sample(), OWN_SAMPLE) if path is None else (read_text(path), str(path))
    tokens = sequences_of(encode, text, SEQUENCE_LENGTH, MAX_TOKENS)
    if tokens.numel() < MIN_TOKENS:
        raise ConfigError(
            f"{source} is too short to calibrate with: {tokens.numel()} tokens; at least {MIN_TOKENS} are needed."
        )
    return Calibration(tokens, source, hashlib.sha256(text.encode()).hexdigest())


def held_out_tokens(encode: Encode, *, sequence_length: int = 512, max_tokens: int = 17_408) -> Tensor:
    """Token ids [sequences, length] for `quality.measure`."""
    return sequences_of(encode, held_out_text(), sequence_length, max_tokens)


def sequences_of(encode: Encode, text: str, length: int, max_tokens: int) -> Tensor:
    """A text as ids [sequences, length]. Each begins as the tokenizer begins a text; what fills none is left out."""
    ids = encode(text)
    prefix = [first for first, _ in takewhile(lambda pair: pair[0] == pair[1], zip(encode(""), ids, strict=False))]
    body, own = ids[len(prefix) :], length - len(prefix)
    count = min(len(body) // own, max_tokens // length)
    rows = [prefix + body[index * own : (index + 1) * own] for index in range(count)]
    return torch.tensor(rows, dtype=torch.int64).view(count, length)


def read_text(path: Path) -> str:
    """A UTF-8 text. Raises `ConfigError` for a file that is missing, empty, too large or no text."""
    try:
        if path.is_file() and path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB; a few pages of text are enough.")
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror or error}.") from error
    if not data.strip():
        raise ConfigError(f"{path} is empty; give a text of some pages, as the model will see it in use.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} isn't UTF-8 text (byte {error.start} can't be read); give plain text.") from error
    if "\0" in text:
        raise ConfigError(f"{path} is binary; give plain UTF-8 text.")
    return text
