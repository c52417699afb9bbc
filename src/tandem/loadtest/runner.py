"""The main loop: wait for the arrival, send, record.

Open loop: arrivals come from a clock and never wait for answers; how late we were ourselves is in every record.
Closed loop: the next arrival is when a seat becomes free.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterable, Iterator
from dataclasses import dataclass

from tandem.loadtest.sender import Sender
from tandem.traffic.work import Conversation

_EARLY_S = 0.0005
"""The loop's timers are coarser than this; sending so much early beats sending late."""


@dataclass(slots=True)
class Load:
    """What to send and when."""

    conversations: Iterable[Conversation]
    offsets: Iterator[float] | None = None
    """Open loop: seconds from the start. None: closed loop."""
    concurrency: int = 1
    """Of a closed loop."""
    duration_s: float | None = None
    """No arrivals after this."""
    drain_s: float = 60.0
    """After a run with a duration: how long open answers may take to end."""


async def run(load: Load, sender: Sender) -> None:
    """Wait for the arrival, send, record. What is open when it ends, or when it is cancelled, stays incomplete."""
    arrivals = _Open(load, sender) if load.offsets is not None else _Closed(load, sender)
    watcher = asyncio.create_task(sender.watch())
    flights = _Flights()
    try:
        for conversation in load.conversations:
            due_s = await arrivals.next()
            if due_s is None:
                break
            flights.start(sender.converse(conversation, due_s), arrivals)
        await flights.landed(load.drain_s if load.duration_s is not None else None)
    finally:
        await flights.cancel()
        watcher.cancel()


class _Open:
    def __init__(self, load: Load, sender: Sender) -> None:
        assert load.offsets is not None
        self._offsets = load.offsets
        self._duration_s = load.duration_s
        self._sender = sender

    async def next(self) -> float | None:
        """The next arrival's due time, once it has come; None: there are no more."""
        due_s = next(self._offsets, None)
        if due_s is None or (self._duration_s is not None and due_s >= self._duration_s):
            return None
        while (ahead_s := due_s - self._sender.now()) > _EARLY_S:  # noqa: ASYNC110
            await asyncio.sleep(ahead_s)
        return due_s

    def free(self) -> None: ...


class _Closed:
    def __init__(self, load: Load, sender: Sender) -> None:
        self._seats = asyncio.Semaphore(load.concurrency)
        self._duration_s = load.duration_s
        self._sender = sender

    async def next(self) -> float | None:
        await self._seats.acquire()
        now_s = self._sender.now()
        return now_s if self._duration_s is None or now_s < self._duration_s else None

    def free(self) -> None:
        self._seats.release()


class _Flights:
    """The conversations under way."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None

    def start(self, conversation: Coroutine[None, None, None], arrivals: _Open | _Closed) -> None:
        task = asyncio.create_task(conversation)
        self._tasks.add(task)

        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            arrivals.free()
            if not task.cancelled() and task.exception() is not None:
                self._failure = task.exception()

        task.add_done_callback(done)

    async def landed(self, limit_s: float | None) -> None:
        """All have ended, or the limit has passed. A bug in one of them is raised here, not swallowed."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=limit_s)
        if self._failure is not None:
            raise self._failure

    async def cancel(self) -> None:
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
