"""Input files line by line: what is taken, and what is said of what isn't."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tandem.config.gateway_store import BatchesConfig
from tandem.gateway.batches.input import MAX_ERRORS, check_input, raw_lines, read_input
from tests.gateway.lines import chat_file, chat_line, jsonl

CONFIG = BatchesConfig()
CHAT = "/v1/chat/completions"


def check(tmp_path: Path, content: bytes, config: BatchesConfig = CONFIG) -> tuple[int, list[tuple[str, int | None]]]:
    path = tmp_path / "file"
    path.write_bytes(content)
    checked = check_input(path, CHAT, config)
    return checked.num_lines, [(error.code, error.line) for error in checked.errors]


def bad_third(third: bytes) -> bytes:
    lines = chat_file(5).splitlines(keepends=True)
    lines[2] = third + b"\n"
    return b"".join(lines)


@pytest.mark.parametrize(
    ("content", "errors"),
    [
        (bad_third(b"{bad json"), [("invalid_json_line", 3)]),
        (bad_third(b"[1,2]"), [("invalid_json_line", 3)]),
        (bad_third(b"null"), [("invalid_json_line", 3)]),
        (bad_third(json.dumps(chat_line("q3", body="text")).encode()), [("invalid_json_line", 3)]),
        (bad_third(b'{"method":"POST","url":"/v1/chat/completions","body":{}}'), [("invalid_json_line", 3)]),
        (bad_third(json.dumps(chat_line("q1")).encode()), [("duplicate_custom_id", 3)]),
        (bad_third(json.dumps(chat_line("q3", url="/v1/embeddings")).encode()), [("mismatched_endpoint", 3)]),
        (bad_third(json.dumps(chat_line("q3", method="GET")).encode()), [("invalid_json_line", 3)]),
        (bad_third(json.dumps(chat_line("c" * 1000)).encode()), [("invalid_custom_id", 3)]),
        (b"", [("empty_file", None)]),
        (b"\n \r\n\n", [("empty_file", None)]),
        (bad_third(b'{"custom_id":"q\xff\xfe"}'), [("invalid_json_line", 3)]),
        (b"Dear reader,\nthis is prose.\n", [("invalid_json_line", 1), ("invalid_json_line", 2)]),
        (b"\n\n{bad\n", [("invalid_json_line", 3)]),
    ],
)
def test_damaged_files_name_the_line(tmp_path: Path, content: bytes, errors: list[tuple[str, int | None]]) -> None:
    """Case ba-02, the files that are refused."""
    assert check(tmp_path, content)[1] == errors


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf" + chat_file(3).replace(b"\n", b"\r\n") + b"\r\n",
        chat_file(3).rstrip(b"\n"),
        chat_file(3).replace(b"\n", b"\n\n"),
    ],
)
def test_odd_but_good_files_run(tmp_path: Path, content: bytes) -> None:
    """Case ba-02, the files that are taken: byte order mark, Windows' line ends, blank lines, no last line end."""
    assert check(tmp_path, content) == (3, [])
    assert [line.custom_id for line in read_input(tmp_path / "file", CONFIG)] == ["q1", "q2", "q3"]


def test_bodies_come_as_they_were_written(tmp_path: Path) -> None:
    body = b'{"model" : "m","seed":123456789012345678901234567890, "temperature":1.0}'
    line = b'{"custom_id":"a","url":"' + CHAT.encode() + b'","body":' + body + b"}"
    (tmp_path / "file").write_bytes(line)
    assert next(read_input(tmp_path / "file", CONFIG)).body == body


def test_too_many_lines_and_too_long_ones(tmp_path: Path) -> None:
    assert check(tmp_path, chat_file(4), BatchesConfig(max_lines=3)) == (4, [("too_many_lines", 4)])
    long = jsonl(chat_line("q1"), chat_line("q2", body={"x": "y" * 5000}), chat_line("q3"))
    assert check(tmp_path, long, BatchesConfig(max_line_mib=2048 / (1 << 20))) == (3, [("line_too_long", 2)])


def test_a_line_without_end_is_never_held_whole(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 3_000_000 + b"\n" + b"y\n" + b"z" * 3_000_000)
    assert list(raw_lines(tmp_path / "file", 100)) == [(1, None), (2, b"y"), (3, None)]


def test_a_line_of_just_the_limit_passes(tmp_path: Path) -> None:
    for end in (b"\n", b"\r\n", b""):
        (tmp_path / "file").write_bytes(b"x" * 100 + end)
        assert list(raw_lines(tmp_path / "file", 100)) == [(1, b"x" * 100)]
        (tmp_path / "file").write_bytes(b"x" * 101 + end)
        assert list(raw_lines(tmp_path / "file", 100)) == [(1, None)]


def test_errors_are_told_up_to_a_number(tmp_path: Path) -> None:
    assert len(check(tmp_path, b"{\n" * 1000)[1]) == MAX_ERRORS


def test_the_model_is_named_if_there_is_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(chat_file(2))
    assert check_input(path, CHAT, CONFIG).model == "m"
    path.write_bytes(jsonl(chat_line("a"), chat_line("b", body={"model": "other"})))
    assert check_input(path, CHAT, CONFIG).model is None
