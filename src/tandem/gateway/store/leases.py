"""Leases: of what must run once among several gateways (the batch runner, the controller), one holder at a time.

No time is ever written or compared between machines, so clocks may be wrong and may jump. A holder raises a counter
every third of the time to live; whoever wants the lease watches, and if the counter stood still for a whole time to
live by its own monotonic clock, takes over. A holder stops for itself when it couldn't renew for as long.

A process may still be suspended for an hour between its last look and its next write. Against that there is the fence:
each new holder gets a larger token, and every write made under a lease calls `check` in its own transaction, which
fails if the token has moved on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from sqlalchemy import ColumnElement, Connection, select, update

from tandem.core.clock import Clock, SystemClock
from tandem.gateway.store.database import Database
from tandem.gateway.store.errors import DatabaseAway, LeaseLost
from tandem.gateway.store.tables import leases
from tandem.gateway.store.upsert import insert_new

NOBODY: Final = ""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Seen:
    """The row as we saw it, and when it last changed, on our clock."""

    holder: str
    token: int
    renewals: int
    since_s: float


class Lease:
    """One contender for one name. All methods from the event loop, except `check`."""

    def __init__(
        self,
        database: Database,
        name: str,
        *,
        ttl_s: float | None = None,
        holder: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self.ttl_s = ttl_s or database.config.lease_ttl_s
        self.holder = holder or f"gw-{secrets.token_hex(8)}"
        self._database = database
        self._clock = clock or SystemClock()
        self._seen: _Seen | None = None
        self._token: int | None = None
        self._renewed_s = 0.0

    @property
    def token(self) -> int | None:
        """Our fence; None while we aren't the holder as far as we know."""
        return self._token

    @property
    def is_held(self) -> bool:
        """Certainly ours: renewed within the time to live."""
        return self._token is not None and self._clock.now() - self._renewed_s < self.ttl_s

    async def try_acquire(self) -> bool:
        """Call it now and then. True once it's ours. Raises `DatabaseAway`."""
        now_s = self._clock.now()
        row = await self._database.write(self._look)
        holder, token, renewals = row
        if self._seen is None or (holder, token, renewals) != (
            self._seen.holder, self._seen.token, self._seen.renewals,
        ):  # fmt: skip
            self._seen = _Seen(holder, token, renewals, now_s)
        is_free = holder == NOBODY or now_s - self._seen.since_s >= self.ttl_s
        if not is_free or not await self._database.write(self._take):
            return False
        self._token, self._renewed_s = token + 1, now_s
        return True

    async def renew(self) -> bool:
        """False: somebody else has it. Raises `DatabaseAway`; then it may still be ours."""
        now_s = self._clock.now()
        if self._token is None:
            return False
        if not await self._database.write(self._raise_counter):
            self._token = None
            return False
        self._renewed_s = now_s
        return True

    async def release(self) -> None:
        """Lets the next one have it at once, if the database can be told."""
        if self._token is None:
            return
        with contextlib.suppress(DatabaseAway):
            await self._database.write(self._give_up)
        self._token = None

    def check(self, connection: Connection) -> None:
        """In the transaction of a write made under this lease: raises `LeaseLost` unless it's still ours.

        The row stays locked to the end of the transaction, so nobody can take over between this and the commit.
        """
        query = select(leases.c.token, leases.c.holder).where(leases.c.name == self.name).with_for_update(read=True)
        row = connection.execute(query).one_or_none()
        if row is None or self._token is None or (row.token, row.holder) != (self._token, self.holder):
            raise LeaseLost(f"The lease {self.name!r} has gone to another gateway.")

    async def hold(self, work: Callable[[], Awaitable[None]], *, is_strict: bool = True) -> None:
        """Waits for the lease and runs `work` under it; begins anew where that fails or the lease is lost.

        Returns when `work` does. `work` is cancelled when the lease is lost. With `is_strict` that is also when it
        couldn't be renewed for its time to live; without, `work` may go on while the database is away, relying on
        `check`.
        """
        try:
            while True:
                await self._wait_for_it()
                _log.info("the lease %r is ours now", self.name)
                if await self._work_while_held(work, is_strict):
                    return
                await self.release()
        finally:
            await asyncio.shield(asyncio.ensure_future(self.release()))

    async def _wait_for_it(self) -> None:
        while True:
            try:
                if await self.try_acquire():
                    return
            except DatabaseAway:
                pass
            await asyncio.sleep(self.ttl_s / 3)

    async def _work_while_held(self, work: Callable[[], Awaitable[None]], is_strict: bool) -> bool:
        """Whether the work ended by itself."""
        task = asyncio.ensure_future(work())
        try:
            while not task.done():
                await asyncio.wait([task], timeout=self.ttl_s / 3)
                if not task.done() and not await self._is_kept(is_strict):
                    _log.warning("the lease %r is lost", self.name)
                    return False
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        error = task.exception()
        if error is not None:
            _log.error("what runs under the lease %r failed, and begins anew", self.name, exc_info=error)
            await asyncio.sleep(self.ttl_s / 3)
        return error is None

    async def _is_kept(self, is_strict: bool) -> bool:
        try:
            return await self.renew()
        except DatabaseAway:
            return self.is_held or not is_strict

    def _look(self, connection: Connection) -> tuple[str, int, int]:
        insert_new(connection, leases, [{"name": self.name, "holder": NOBODY, "token": 0, "renewals": 0}])
        columns = (leases.c.holder, leases.c.token, leases.c.renewals)
        row = connection.execute(select(*columns).where(leases.c.name == self.name)).one()
        return row.holder, row.token, row.renewals

    def _take(self, connection: Connection) -> bool:
        """Only if it is as we saw it: of several who take over, one succeeds."""
        seen = self._seen
        assert seen is not None
        unchanged = (
            (leases.c.name == self.name)
            & (leases.c.holder == seen.holder)
            & (leases.c.token == seen.token)
            & (leases.c.renewals == seen.renewals)
        )
        values = {"holder": self.holder, "token": seen.token + 1, "renewals": leases.c.renewals + 1}
        return connection.execute(update(leases).where(unchanged).values(values)).rowcount == 1

    def _raise_counter(self, connection: Connection) -> bool:
        statement = update(leases).where(self._is_ours()).values(renewals=leases.c.renewals + 1)
        return connection.execute(statement).rowcount == 1

    def _give_up(self, connection: Connection) -> None:
        connection.execute(update(leases).where(self._is_ours()).values(holder=NOBODY))

    def _is_ours(self) -> ColumnElement[bool]:
        return (leases.c.name == self.name) & (leases.c.token == self._token) & (leases.c.holder == self.holder)
