"""The batch runner: at one gateway of a deployment, whichever holds the lease, it works through all batches.

Its loop: look what is active, begin what may begin, tell runs that were cancelled or whose window has passed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Iterable
from operator import itemgetter
from typing import Final

from tandem.config.gateway_store import BatchesConfig
from tandem.core.clock import Clock, SystemClock
from tandem.gateway.batches.fenced import Fenced
from tandem.gateway.batches.files import Folder
from tandem.gateway.batches.lines import Execute
from tandem.gateway.batches.records import ActiveBatch, active_batches
from tandem.gateway.batches.room import Room
from tandem.gateway.batches.run import BatchRun
from tandem.gateway.batches.sending import Sender
from tandem.gateway.batches.sweep import sweep
from tandem.gateway.store.database import Database
from tandem.gateway.store.errors import DatabaseAway, LeaseLost
from tandem.gateway.store.leases import Lease
from tandem.gateway.store.wall import WallClock

LEASE: Final = "batch-runner"
SWEEP_S: Final = 600.0
_FAILED_RETRY_S: Final = 10.0
_log = logging.getLogger(__name__)


class BatchRunner:
    """One per gateway process; only one of a deployment runs anything."""

    def __init__(
        self,
        database: Database,
        folder: Folder,
        config: BatchesConfig,
        execute: Execute,
        *,
        lease: Lease | None = None,
        clock: Clock | None = None,
        wall: WallClock | None = None,
    ) -> None:
        self._database = database
        self._folder = folder
        self._config = config
        self._clock = clock or SystemClock()
        self._wall = wall or WallClock(self._clock)
        self.lease = lease or Lease(database, LEASE, clock=self._clock)
        self._store = Fenced(database, self.lease)
        self.room = Room(config.max_concurrency, self._clock)
        self._sender = Sender(execute, self.room, self._clock, config.line_attempts)
        self._runs: dict[str, tuple[BatchRun, asyncio.Task[None]]] = {}
        self._retry_at_s: dict[str, float] = {}
        """Batch → when it may begin again after a failure of ours."""
        self._wake = asyncio.Event()
        self._lost: LeaseLost | None = None
        self._is_draining = False
        self._task: asyncio.Task[None] | None = None
        self._sweep_at_s = self._clock.now() + SWEEP_S

    @property
    def num_active(self) -> int:
        """Batches being worked on here."""
        return len(self._runs)

    @property
    def num_open_lines(self) -> int:
        return sum(run.num_open for run, _ in self._runs.values())

    def notify(self) -> None:
        """A batch was made or cancelled at this gateway: look now."""
        self._wake.set()

    async def start(self) -> None:
        self._task = asyncio.create_task(self.lease.hold(self._work, is_strict=False))

    async def close(self, drain_s: float = 0.0) -> None:
        """Running lines may end within `drain_s`; the others run again elsewhere. Gives the lease up."""
        self._is_draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(drain_s):
                while self.num_open_lines:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _work(self) -> None:
        """While the lease is ours."""
        self._lost = None
        try:
            while self._lost is None:
                await self._look()
                await self._pause()
            raise self._lost
        finally:
            tasks = [task for _, task in self._runs.values()]
            self._runs.clear()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _look(self) -> None:
        # A batch that ends while we read is in `active` as it was before: it must not begin again.
        known = set(self._runs)
        try:
            active = await self._database.read(active_batches)
            await self._sweep_if_due()
        except DatabaseAway:
            return
        for batch in active:
            if batch.id in self._runs:
                self._tell(batch, self._runs[batch.id][0])
        waiting = [batch for batch in active if batch.id not in known]
        for batch in _in_turn(waiting, [run.batch.tenant for run, _ in self._runs.values()]):
            if self._may_begin(batch):
                self._begin(batch)

    def _tell(self, batch: ActiveBatch, run: BatchRun) -> None:
        if batch.status == "cancelling":
            run.stop("cancelled")
        elif self._has_passed(batch):
            run.stop("expired")

    def _may_begin(self, batch: ActiveBatch) -> bool:
        if self._is_draining or self._clock.now() < self._retry_at_s.get(batch.id, 0.0):
            return False
        # What only has to be ended needs no place.
        is_ending = batch.status in ("cancelling", "finalizing") or self._has_passed(batch)
        return is_ending or len(self._runs) < self._config.max_active

    def _begin(self, batch: ActiveBatch) -> None:
        run = BatchRun(
            batch, self._store, self._folder, self._config, self._sender, self._wall, lambda: self._is_draining
        )
        self._tell(batch, run)
        task = asyncio.create_task(run.run())
        self._runs[batch.id] = (run, task)
        task.add_done_callback(lambda ended: self._ended(batch.id, ended))

    def _ended(self, batch_id: str, task: asyncio.Task[None]) -> None:
        if self._runs.get(batch_id, (None, None))[1] is task:
            del self._runs[batch_id]
        self._wake.set()
        error = None if task.cancelled() else task.exception()
        if error is None:
            self._retry_at_s.pop(batch_id, None)
        elif _is_lost(error):
            self._lost = LeaseLost("Another gateway runs the batches now.")
        else:
            _log.error("the batch %s could not go on; it begins anew in a moment", batch_id, exc_info=error)
            self._retry_at_s[batch_id] = self._clock.now() + _FAILED_RETRY_S

    def _has_passed(self, batch: ActiveBatch) -> bool:
        # One whose lines are all done only lacks its files.
        return batch.status != "finalizing" and self._wall.now() >= batch.expires_at

    async def _pause(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.poll_s):
                await self._wake.wait()
        self._wake.clear()

    async def _sweep_if_due(self) -> None:
        now_s = self._clock.now()
        if now_s >= self._sweep_at_s:
            self._sweep_at_s = now_s + SWEEP_S
            try:
                await asyncio.to_thread(sweep, self._database, self._folder, self._wall.now())
            except OSError as error:
                _log.error("the data folder can't be swept: %s", error)


def _in_turn(batches: Iterable[ActiveBatch], running: Iterable[str]) -> list[ActiveBatch]:
    """Those first whose tenant has least: a hundred batches of one keep nobody else waiting. `running`: by tenant."""
    counts = Counter(running)
    ranked: list[tuple[int, ActiveBatch]] = []
    for batch in batches:
        ranked.append((counts[batch.tenant], batch))
        counts[batch.tenant] += 1
    return [batch for _, batch in sorted(ranked, key=itemgetter(0))]


def _is_lost(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(LeaseLost) is not None
    return isinstance(error, LeaseLost)
