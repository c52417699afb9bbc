"""The database as the batch runner uses it: every write is fenced by the lease, and tried until it's taken.

A result that cost an engine's time is not thrown away because the database is away for a minute.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sqlalchemy import Connection

from tandem.gateway.store.database import Database
from tandem.gateway.store.errors import DatabaseAway
from tandem.gateway.store.leases import Lease

T = TypeVar("T")


class Fenced:
    """Work handed in may run twice, when the answer to the first time was lost: it must bear that."""

    def __init__(self, database: Database, lease: Lease) -> None:
        self.database = database
        self._lease = lease

    @property
    def retry_s(self) -> float:
        return self.database.config.retry_s

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Waits for as long as the database is away. Raises `LeaseLost` if another gateway is the runner now."""

        def checked(connection: Connection) -> T:
            self._lease.check(connection)
            return work(connection)

        return await self.until_up(lambda: self.database.write(checked))

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Waits for as long as the database is away."""
        return await self.until_up(lambda: self.database.read(work))

    async def until_up(self, work: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await work()
            except DatabaseAway:
                await asyncio.sleep(self.retry_s)
