"""Leases: one holder, takeover when it dies, nothing written by one that slept too long, and no wall clock anywhere."""

from __future__ import annotations

import asyncio
import time
from functools import partial

import pytest
from sqlalchemy import Connection

from tandem.core.clock import ManualClock
from tandem.gateway.store.database import Database
from tandem.gateway.store.errors import DatabaseAway, LeaseLost
from tandem.gateway.store.leases import Lease
from tandem.gateway.store.settings import bump, number

TTL_S = 9.0
Pair = tuple[Lease, Lease]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100.0)


@pytest.fixture
async def pair(database: Database, clock: ManualClock) -> Pair:
    a, b = (Lease(database, "runner", ttl_s=TTL_S, holder=name, clock=clock) for name in "ab")
    return a, b


async def test_one_of_two_has_it(pair: Pair) -> None:
    a, b = pair
    won = await asyncio.gather(a.try_acquire(), b.try_acquire())
    assert sorted(won) == [False, True]
    assert sorted([a.is_held, b.is_held]) == [False, True]


async def test_a_holder_that_renews_keeps_it(pair: Pair, clock: ManualClock) -> None:
    a, b = pair
    assert await a.try_acquire()
    for _ in range(10):
        clock.advance(TTL_S / 3)
        assert await a.renew()
        assert not await b.try_acquire()


async def test_a_silent_holder_is_followed_after_its_time(pair: Pair, clock: ManualClock) -> None:
    a, b = pair
    assert await a.try_acquire()
    assert not await b.try_acquire()
    clock.advance(TTL_S - 0.1)
    assert not await b.try_acquire()
    clock.advance(0.1)
    assert not a.is_held
    assert await b.try_acquire()
    assert b.token is not None
    assert a.token is not None
    assert b.token > a.token
    assert not await a.renew()
    assert a.token is None


async def test_a_given_up_lease_is_had_at_once(pair: Pair) -> None:
    a, b = pair
    assert await a.try_acquire()
    await a.release()
    assert await b.try_acquire()


async def test_who_was_suspended_can_write_nothing_more(pair: Pair, clock: ManualClock, database: Database) -> None:
    """A still believes; the fence knows better."""
    a, b = pair

    def guarded(connection: Connection, lease: Lease) -> None:
        lease.check(connection)
        bump(connection, "written")

    assert await a.try_acquire()
    await database.write(partial(guarded, lease=a))
    await b.try_acquire()
    clock.advance(TTL_S)
    assert await b.try_acquire()
    with pytest.raises(LeaseLost):
        await database.write(partial(guarded, lease=a))
    await database.write(partial(guarded, lease=b))
    assert await database.read(partial(number, name="written")) == 2


async def test_the_wall_clock_plays_no_part(pair: Pair, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = pair
    assert await a.try_acquire()
    await b.try_acquire()
    for jump_s in (-86_400.0, 86_400.0):
        monkeypatch.setattr(time, "time", lambda jump_s=jump_s: 1e9 + jump_s)
        assert a.is_held
        assert await a.renew()
        assert not await b.try_acquire()


async def test_of_several_that_take_over_one_succeeds(database: Database, clock: ManualClock, pair: Pair) -> None:
    assert await pair[0].try_acquire()
    others = [Lease(database, "runner", ttl_s=TTL_S, clock=clock) for _ in range(5)]
    await asyncio.gather(*(other.try_acquire() for other in others))
    clock.advance(TTL_S)
    assert sum(await asyncio.gather(*(other.try_acquire() for other in others))) == 1


async def test_work_is_cut_off_when_the_lease_is_lost_and_begins_at_the_other(database: Database) -> None:
    running: list[str] = []
    changed = asyncio.Event()

    async def work(name: str) -> None:
        running.append(name)
        changed.set()
        try:
            await asyncio.Event().wait()
        finally:
            running.remove(name)

    leases = {name: Lease(database, "runner", ttl_s=0.3, holder=name) for name in "ab"}
    tasks = {name: asyncio.create_task(lease.hold(partial(work, name))) for name, lease in leases.items()}
    async with asyncio.timeout(20):
        await changed.wait()
        first = running[0]
        second = "b" if first == "a" else "a"
        changed.clear()
        # A holder whose renewals reach nobody, as in a process that hangs.
        leases[first].renew = lambda: asyncio.sleep(0, False)  # type: ignore[method-assign]
        leases[first].release = lambda: asyncio.sleep(0)  # type: ignore[method-assign]
        leases[first].try_acquire = lambda: asyncio.sleep(0, False)  # type: ignore[method-assign]
        await changed.wait()
        assert running == [second]
    for task in tasks.values():
        task.cancel()
    await asyncio.gather(*tasks.values(), return_exceptions=True)
    assert running == []


async def test_strict_work_stops_with_an_unreachable_database_and_other_work_goes_on(
    database: Database, clock: ManualClock
) -> None:
    lease = Lease(database, "runner", ttl_s=TTL_S, clock=clock)
    assert await lease.try_acquire()

    async def away() -> bool:
        raise DatabaseAway("away")

    lease.renew = away  # type: ignore[method-assign]
    assert await lease._is_kept(True)
    clock.advance(TTL_S)
    assert not await lease._is_kept(True)
    assert await lease._is_kept(False)
