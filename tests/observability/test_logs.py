"""One event is one line, with the request it is about."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from tandem.observability import logs


@pytest.fixture(autouse=True)
def _restore_root() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


def log_lines(log_format: logs.LogFormat, level: str = "info") -> list[str]:
    stream = io.StringIO()
    logs.setup_logging(level, log_format, stream)
    token = logs.request_id.set("req-1")
    logging.getLogger("tandem.x").info("hello %s", "a\nb", extra={"num_tokens": 5})
    logs.request_id.reset(token)
    logging.getLogger("tandem.x").debug("too much")
    try:
        raise ValueError("boom")
    except ValueError:
        logging.getLogger("tandem.x").exception("bad")
    return stream.getvalue().splitlines()


def test_json_lines() -> None:
    first, second = map(json.loads, log_lines("json"))
    assert first.pop("time").endswith("Z")
    assert first == {
        "level": "info",
        "logger": "tandem.x",
        "message": "hello a\nb",
        "request_id": "req-1",
        "num_tokens": 5,
    }
    assert "request_id" not in second
    assert "ValueError: boom" in second["exception"]


def test_text_lines() -> None:
    lines = log_lines("text")
    assert lines[0].endswith(r"info tandem.x req-1: hello a\x0ab num_tokens=5")
    assert lines[1].endswith("error tandem.x: bad")
    assert lines[-1] == "ValueError: boom"


def test_levels() -> None:
    assert len(log_lines("json", "error")) == 1


def test_setting_up_twice_logs_once() -> None:
    logs.setup_logging("info", "text", io.StringIO())
    assert len(log_lines("json")) == 2
