"""Calibration text: what is refused, how it is cut, and that the shipped texts are long enough and apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.core.errors import ConfigError
from tandem.engine.loading.opening import open_checkpoint
from tandem.engine.quantization.calibration import (
    MAX_TOKENS,
    OWN_SAMPLE,
    held_out_text,
    held_out_tokens,
    own_sample,
    read_calibration,
    sequences_of,
)
from tandem.engine.quantization.quality import MIN_TOKENS
from tandem.engine.text.tokenizer import load_tokenizer


def encode(text: str) -> list[int]:
    """BOS, then one id a character."""
    return [1, *(2 + ord(character) % 90 for character in text)]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b" \n ", "is empty"),
        (b"\x89PNG\r\n\x1a\n\xff\xfe", "isn't UTF-8 text"),
        (b"text\0text" * 200, "is binary"),
        (b"too short", "too short to calibrate with: 0 tokens; at least 512"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=message):
        read_calibration(encode, path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.txt", tmp_path):
        with pytest.raises(ConfigError, match="can't be read"):
            read_calibration(encode, path)


def test_every_sequence_begins_as_a_text_does() -> None:
    tokens = sequences_of(encode, "abcdefghijkl", 5, 100)
    assert tokens[:, 0].tolist() == [1, 1, 1]
    assert tokens[:, 1:].flatten().tolist() == encode("abcdefghijkl")[1:]
    assert sequences_of(encode, "abcdefghijkl", 5, 10).shape == (2, 5)


def test_a_users_text_is_read_and_named(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("A page of text. " * 2000, encoding="utf-8")
    calibration = read_calibration(encode, path)
    assert calibration.source == str(path)
    assert calibration.num_tokens == MAX_TOKENS
    assert read_calibration(encode).source == OWN_SAMPLE
    assert read_calibration(encode).sha256 != calibration.sha256


def test_shipped_texts_are_enough_and_apart(smollm2: Path) -> None:
    tokenizer = load_tokenizer(open_checkpoint(smollm2).text)
    assert held_out_tokens(tokenizer.encode).numel() >= MIN_TOKENS + 512
    assert read_calibration(tokenizer.encode).num_tokens >= 4096
    lines = {line for line in own_sample().splitlines() if len(line) > 40}
    assert lines.isdisjoint(held_out_text().splitlines())
