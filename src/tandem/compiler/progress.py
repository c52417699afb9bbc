"""How a build shows where it is: stages with their time. Knows nothing of what the stages do.

A stage's seconds are kept, for the manifest. On a terminal a line moves; in a log each stage is two plain lines.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn


class StageProgress(Protocol):
    """One stage at a time: `with progress.stage("quantise"): progress.advance(3, 30)`."""

    @property
    def seconds(self) -> dict[str, float]:
        """Stage → seconds, of the stages that were completed."""
        ...

    def stage(self, name: str) -> AbstractContextManager[None]:
        """The same name twice adds up."""
        ...

    def advance(self, done: int, total: int) -> None:
        """Within a stage, where it is known how much there is."""
        ...


class SilentStages:
    """Shows nothing; keeps the times."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        started_s = time.monotonic()
        self._begin(name)
        is_done = False
        try:
            yield
            is_done = True
        finally:
            taken_s = time.monotonic() - started_s
            if is_done:
                self.seconds[name] = round(self.seconds.get(name, 0.0) + taken_s, 3)
            self._end(name, taken_s, is_done)

    def advance(self, done: int, total: int) -> None: ...

    def _begin(self, name: str) -> None: ...

    def _end(self, name: str, taken_s: float, is_done: bool) -> None: ...


class ConsoleStages(SilentStages):
    """For people; writes to standard error by default."""

    def __init__(self, console: Console | None = None) -> None:
        super().__init__()
        self._console = console or Console(stderr=True)
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def advance(self, done: int, total: int) -> None:
        if self._bar:
            self._bar.update(self._task, completed=done, total=total)

    def _begin(self, name: str) -> None:
        if not self._console.is_terminal:
            self._say(f"{name} ...")
            return
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn())
        # transient: the line that moved gives way to the one that stays.
        self._bar = Progress(*columns, TimeElapsedColumn(), console=self._console, transient=True)
        self._task = self._bar.add_task(name, total=None)
        self._bar.start()

    def _end(self, name: str, taken_s: float, is_done: bool) -> None:
        if self._bar:
            self._bar.stop()
        self._bar = None
        if is_done:
            self._say(f"{name}: {taken_s:.1f} s")

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
