"""Stages are timed, and shown where somebody looks."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tandem.compiler.progress import ConsoleStages, SilentStages


def test_seconds_are_kept_by_stage_and_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10.0, 12.5, 20.0, 20.25, 30.0, 31.0])
    monkeypatch.setattr("tandem.compiler.progress.time.monotonic", lambda: next(times))
    stages = SilentStages()
    for name in ("export", "compile", "export"):
        with stages.stage(name):
            stages.advance(1, 2)
    assert stages.seconds == {"export": 3.5, "compile": 0.25}


def test_a_log_gets_plain_lines() -> None:
    out = io.StringIO()
    stages = ConsoleStages(Console(file=out, width=20))
    with stages.stage("quantise [int4] with a long name"):
        stages.advance(1, 2)
    lines = out.getvalue().splitlines()
    assert lines == ["quantise [int4] with a long name ...", "quantise [int4] with a long name: 0.0 s"]


def test_a_failed_stage_has_no_time_and_stops_the_display() -> None:
    out = io.StringIO()
    stages = ConsoleStages(Console(file=out, force_terminal=True))
    with pytest.raises(RuntimeError), stages.stage("compile"):
        raise RuntimeError
    assert stages.seconds == {}
    assert "compile:" not in out.getvalue()
    assert out.getvalue().endswith("\x1b[?25h\r\x1b[1A\x1b[2K") or "\x1b[?25h" in out.getvalue()  # the cursor is back


def test_a_terminal_keeps_one_line_a_stage() -> None:
    out = io.StringIO()
    stages = ConsoleStages(Console(file=out, force_terminal=True, width=100))
    with stages.stage("compile"):
        stages.advance(1, 2)
    assert out.getvalue().rstrip().endswith("compile: 0.0 s")
