"""Running a request's generations at once: they end together, well or not."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any


async def run_together(works: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Wait for all. The first failure cancels the others and is raised as it is, not in a group."""
    if len(works) == 1:  # nearly always; saves a task
        await works[0]
        return
    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)
    except BaseExceptionGroup as failures:
        raise _first(failures) from None


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    first = failures.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
