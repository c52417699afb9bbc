"""The database from the event loop's side: work runs in a few threads, in transactions, and fails fast while it's away.

It knows no table. Nothing on the chat path calls it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from tandem.config.gateway_store import StoreConfig
from tandem.core.clock import Clock, SystemClock
from tandem.gateway.store.engines import WRITE, create_engine
from tandem.gateway.store.errors import DatabaseAway
from tandem.gateway.store.migrate import migrate

T = TypeVar("T")
_AWAY_STATES: Final = ("08", "53", "57P")
"""Classes of PostgreSQL's error codes: connection, resources, shutdown."""
_log = logging.getLogger(__name__)


class Database:
    """One per process. `close` when done; it waits for what runs."""

    def __init__(self, address: str, config: StoreConfig | None = None, clock: Clock | None = None) -> None:
        """Raises `ConfigError` for a bad address; connects to nothing yet."""
        self.config = config or StoreConfig()
        self._clock = clock or SystemClock()
        self.engine: Engine = create_engine(address, self.config)
        self._threads = ThreadPoolExecutor(self.config.database_threads, thread_name_prefix="database")
        self._lock = threading.Lock()
        self._away_until_s: float | None = None
        self._is_migrated = False

    @property
    def is_up(self) -> bool:
        """As far as the last try told."""
        return self._away_until_s is None

    @property
    def is_postgresql(self) -> bool:
        return self.engine.dialect.name == "postgresql"

    async def write(self, work: Callable[[Connection], T]) -> T:
        """`work` in one transaction, committed when it returns. Raises `DatabaseAway`, and what `work` raises.

        Cancelling the wait doesn't stop the work: it is committed, or not, all the same.
        """
        return await self._in_thread(lambda: self.write_now(work))

    async def read(self, work: Callable[[Connection], T]) -> T:
        """`work` in one transaction that only reads. Raises `DatabaseAway`, and what `work` raises."""
        return await self._in_thread(lambda: self.read_now(work))

    def write_now(self, work: Callable[[Connection], T]) -> T:
        """The same, in the caller's thread."""
        return self._guarded(lambda: self._transact(work, is_write=True))

    def read_now(self, work: Callable[[Connection], T]) -> T:
        return self._guarded(lambda: self._transact(work, is_write=False))

    async def start(self) -> bool:
        """Brings the tables up to date. False if the database is away: the first work after its return does it then."""
        try:
            await self._in_thread(lambda: self._guarded(lambda: None))
        except DatabaseAway:
            return False
        return True

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.close_now)

    def close_now(self) -> None:
        self._threads.shutdown(wait=True)
        self.engine.dispose()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        if self._is_resting():
            raise _away()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _transact(self, work: Callable[[Connection], T], *, is_write: bool) -> T:
        with self.engine.connect() as connection:
            connection = connection.execution_options(**{WRITE: is_write})
            with connection.begin():
                return work(connection)

    def _guarded(self, work: Callable[[], T]) -> T:
        """Turns what a missing database looks like into `DatabaseAway`, and lets it rest for a moment after that."""
        if self._is_resting():
            raise _away()
        try:
            self._ensure_tables()
            result = work()
        except (OperationalError, InterfaceError, PoolTimeout) as error:
            self._note_away(error)
            raise _away() from error
        except DBAPIError as error:
            if not error.connection_invalidated:
                raise
            self._note_away(error)
            raise _away() from error
        if self._away_until_s is not None:
            self._away_until_s = None
            _log.info("the database is back")
        return result

    def _ensure_tables(self) -> None:
        if self._is_migrated:
            return
        with self._lock:
            if not self._is_migrated:
                migrate(self.engine)
                self._is_migrated = True

    def _is_resting(self) -> bool:
        return self._away_until_s is not None and self._clock.now() < self._away_until_s

    def _note_away(self, error: Exception) -> None:
        state = getattr(getattr(error, "orig", None), "sqlstate", None)
        if state is not None and not state.startswith(_AWAY_STATES):
            return  # A slow statement or a deadlock: this work failed, the database is there.
        if self._away_until_s is None:
            # Of the driver's own words only the first line: the rest quotes the statement and what stood in it.
            reason = str(getattr(error, "orig", error)).partition("\n")[0][:200]
            _log.warning("the database is away: %s", reason)
        self._away_until_s = self._clock.now() + self.config.retry_s


def _away() -> DatabaseAway:
    return DatabaseAway("The gateway's database can't be reached now; try again in a moment.", retry_after_s=5.0)
