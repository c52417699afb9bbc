"""The ledger's writer: rows go from memory to the database in batches, and by way of the disk while that is away.

`record` never waits and never raises. A row is in memory for `ledger_flush_s` at most, then in the database or on disk.
The one big idea is that nothing here need be exact about what was already written: the request id is unique in the
ledger, so after any doubt (a connection lost in the middle of a commit, a crash) the rows are simply sent again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from tandem.core.clock import Clock, SystemClock
from tandem.gateway.spending import Spending
from tandem.gateway.store.database import Database
from tandem.gateway.store.errors import DatabaseAway
from tandem.gateway.store.ledger_rows import insert_rows, spent_micros
from tandem.gateway.store.spool import Spool, read_rows
from tandem.protocol.ledger import LedgerRow

LOOK_S: Final = 60.0
"""How often the spool is searched for what dead processes left."""
_REFUSALS: Final = (SQLAlchemyError, ValueError, ArithmeticError)
"""What a row that can't be written raises: by the database, or by its driver."""
_log = logging.getLogger(__name__)


class StoredLedger:
    """`Ledger`. `record` from the event loop's thread; `start` and `close` once each."""

    def __init__(
        self, database: Database, spool_folder: Path, spending: Spending | None = None, clock: Clock | None = None
    ) -> None:
        self._database = database
        self._clock = clock or SystemClock()
        self._config = database.config
        self._spool = Spool(spool_folder)
        self.spending = spending or Spending()
        self._queue: deque[LedgerRow] = deque()
        self._wake = asyncio.Event()
        self._writing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False
        self._has_spooled = True
        """True until a look into the folder says otherwise: an earlier process may have left rows."""
        self._look_again_s = 0.0
        self.num_dropped = 0
        """Rows lost because neither database nor disk took them for long. A metric, and an alarm."""
        self.num_refused = 0
        """Rows that the database would never take."""

    @property
    def num_waiting(self) -> int:
        """Rows in memory."""
        return len(self._queue)

    @property
    def is_caught_up(self) -> bool:
        return not self._queue and not self._has_spooled

    def record(self, row: LedgerRow) -> None:
        if len(self._queue) >= self._config.ledger_queue_rows:
            self._drop_oldest()
        self._queue.append(row)
        self.spending.add(row)
        if len(self._queue) >= self._config.ledger_batch_rows:
            self._wake.set()

    async def start(self) -> None:
        self._task = asyncio.create_task(self._write_for_ever())

    async def close(self) -> None:
        """Everything recorded is in the database or on disk when it returns."""
        self._is_closing = True
        self._wake.set()
        if self._task is not None:
            await self._task
            self._task = None
        await self.flush()
        await asyncio.to_thread(self._spool.close)

    async def flush(self) -> None:
        """Writes what waits, wherever it can be written."""
        async with self._writing:
            while self._queue:
                if not await self._write_batch():
                    break

    async def _write_for_ever(self) -> None:
        while not self._is_closing:
            await self._pause()
            try:
                await self.flush()
                if self._database.is_up:
                    await self._catch_up()
                await self._refresh_spending()
            except DatabaseAway:
                pass
            except Exception:
                _log.exception("the ledger's writer failed; it goes on")

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self._config.ledger_flush_s):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def _write_batch(self) -> bool:
        """Rows leave the queue only when they are safe, so that a cancelled wait loses none. False: nowhere to."""
        rows = list(islice(self._queue, self._config.ledger_batch_rows))
        try:
            await self._insert(rows)
        except DatabaseAway:
            try:
                self._has_spooled = True
                await asyncio.to_thread(self._spool.append, rows)
            except OSError as error:
                _log.error("ledger rows can't be spooled: %s; %d wait in memory", error, len(self._queue))
                return False
        self._forget(rows)
        return True

    def _forget(self, rows: Sequence[LedgerRow]) -> None:
        for row in rows:
            # While we waited, a full queue may have dropped its oldest.
            if self._queue and self._queue[0] is row:
                self._queue.popleft()

    async def _insert(self, rows: Sequence[LedgerRow]) -> None:
        try:
            await self._transact(rows)
        except _REFUSALS:
            _log.exception("the database refuses ledger rows; they are tried one by one")
            for row in rows:
                await self._insert_alone(row)
        self.spending.written(rows)

    async def _insert_alone(self, row: LedgerRow) -> None:
        try:
            await self._transact([row])
        except _REFUSALS:
            self.num_refused += 1
            _log.exception("the database refuses a ledger row: %s", row)

    async def _transact(self, rows: Sequence[LedgerRow]) -> None:
        await self._database.write(partial(insert_rows, rows=rows))

    async def _catch_up(self) -> None:
        """Spooled files into the database, each removed after its last row is committed."""
        now_s = self._clock.now()
        if not self._has_spooled and now_s < self._look_again_s:
            return
        self._look_again_s = now_s + LOOK_S
        ours = await asyncio.to_thread(self._replay)
        self.spending.written(ours)
        self._has_spooled = await asyncio.to_thread(self._spool.has_own)

    def _replay(self) -> list[LedgerRow]:
        """In a thread. The rows of ours that are in the database now; also where it goes away in the middle."""
        ours: list[LedgerRow] = []
        try:
            for path in self._spool.take():
                for batch in _batches(read_rows(path), self._config.ledger_batch_rows):
                    if self._is_closing:
                        return ours
                    self._replay_batch(batch)
                if self._spool.is_own(path):
                    ours += read_rows(path)
                path.unlink()
                _log.info("the spooled ledger %s has been caught up", path)
        except DatabaseAway:
            pass
        return ours

    def _replay_batch(self, rows: Sequence[LedgerRow]) -> None:
        try:
            self._database.write_now(partial(insert_rows, rows=rows))
        except _REFUSALS:
            for row in rows:
                self._replay_alone(row)

    def _replay_alone(self, row: LedgerRow) -> None:
        try:
            self._database.write_now(partial(insert_rows, rows=[row]))
        except _REFUSALS:
            self.num_refused += 1
            _log.exception("the database refuses a spooled ledger row: %s", row)

    async def _refresh_spending(self) -> None:
        if not self.spending.is_due():
            return
        month = self.spending.month()
        self.spending.refreshed(month, await self._database.read(partial(spent_micros, month=month)))

    def _drop_oldest(self) -> None:
        self._queue.popleft()
        if self.num_dropped % 1000 == 0:
            _log.error("ledger rows are being lost: neither the database nor the disk takes them")
        self.num_dropped += 1


def _batches(rows: Iterable[LedgerRow], size: int) -> Iterator[list[LedgerRow]]:
    rest = iter(rows)
    while batch := list(islice(rest, size)):
        yield batch
