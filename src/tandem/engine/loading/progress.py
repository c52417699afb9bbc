"""How a long step is shown to whoever waits for it. Knows nothing of what is being done."""

from __future__ import annotations

from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as Bars


class Progress(Protocol):
    """One step at a time: `start`, any number of `advance`, `finish` (also when the step failed)."""

    def start(self, label: str, total_bytes: int | None) -> None:
        """`total_bytes` is None where nobody knows it."""
        ...

    def advance(self, num_bytes: int) -> None: ...

    def finish(self) -> None: ...


class NoProgress:
    """Shows nothing."""

    def start(self, label: str, total_bytes: int | None) -> None: ...

    def advance(self, num_bytes: int) -> None: ...

    def finish(self) -> None: ...


class ConsoleProgress:
    """A bar on a terminal; elsewhere (a log, a pipe) one line a step. Writes to standard error by default."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._bars: Bars | None = None
        self._task = TaskID(0)

    def start(self, label: str, total_bytes: int | None) -> None:
        if not self._console.is_terminal:
            size = f" ({total_bytes / 1e6:.1f} MB)" if total_bytes else ""
            self._console.print(f"{label}{size}", markup=False, highlight=False, soft_wrap=True)
            return
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self._bars = Bars(*columns, TimeRemainingColumn(), console=self._console)
        self._task = self._bars.add_task(label, total=total_bytes)
        self._bars.start()

    def advance(self, num_bytes: int) -> None:
        if self._bars:
            self._bars.advance(self._task, num_bytes)

    def finish(self) -> None:
        if self._bars:
            self._bars.stop()
        self._bars = None
