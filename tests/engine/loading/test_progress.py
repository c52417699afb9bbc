"""Bars on a terminal, lines elsewhere."""

from __future__ import annotations

import io

from rich.console import Console

from tandem.engine.loading.progress import ConsoleProgress


def shown(terminal: bool, total_bytes: int | None) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=120)
    progress = ConsoleProgress(console)
    progress.start("Fetching [x].whl", total_bytes)
    progress.advance(1_000_000)
    progress.advance(1_000_000)
    progress.finish()
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_one_line_a_step_without_a_terminal() -> None:
    assert shown(terminal=False, total_bytes=2_000_000) == "Fetching [x].whl (2.0 MB)\n"
    assert shown(terminal=False, total_bytes=None) == "Fetching [x].whl\n"


def test_a_bar_on_a_terminal() -> None:
    assert "2.0/2.0 MB" in shown(terminal=True, total_bytes=2_000_000)
    assert "Fetching [x].whl" in shown(terminal=True, total_bytes=None)
