"""Several gateways on one database: together they never grant more than a limit, and it moves to where it's wanted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.config.gateway_store import StoreConfig
from tandem.core.clock import ManualClock
from tandem.gateway.context import Caller
from tandem.gateway.keys import StoredKeys
from tandem.gateway.limits import StoredLimits
from tandem.gateway.shares import SILENCE_S, Shares
from tandem.gateway.store.database import Database
from tandem.gateway.store.errors import RateLimited
from tandem.gateway.store.key_rows import KeyRules, create_key
from tandem.gateway.store.share_rows import fair_share

LIMIT = 100


class Gateway:
    """As much of one as limits need. Its clock is the test's."""

    def __init__(self, address: str, config: StoreConfig, clock: ManualClock, name: str) -> None:
        self.database = Database(address, config)
        self.keys = StoredKeys(self.database)
        self.limits = StoredLimits(self.keys.rules, None, clock)
        self.shares = Shares(self.database, self.keys, self.limits, clock, name)
        self.clock = clock
        self.granted: list[tuple[float, int]] = []

    def cap(self) -> int:
        return self.limits.share(self.keys.records()[0].id, "tokens", LIMIT).cap

    def ask(self, tokens: int) -> bool:
        caller = Caller(key_id=self.keys.records()[0].id)
        try:
            self.limits.take(caller, tokens, 0, self.clock.now())
        except RateLimited:
            return False
        self.limits.settle(caller, tokens, tokens, 0)
        self.granted.append((self.clock.now(), tokens))
        return True

    async def close(self) -> None:
        await self.shares.close()
        await self.database.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000.0)


@pytest.fixture
async def gateways(address: str, store_config: StoreConfig, clock: ManualClock) -> AsyncIterator[list[Gateway]]:
    made = [Gateway(address, store_config, clock, name) for name in ("gw-a", "gw-b", "gw-c")]
    rules = KeyRules(tokens_per_minute=LIMIT)
    await made[0].database.write(partial(create_key, name="n", rules=rules, now_s=0.0))
    for gateway in made:
        await gateway.keys.refresh()
    yield made
    for gateway in made:
        await gateway.close()


async def settle(gateways: list[Gateway], rounds: int = 4) -> None:
    for _ in range(rounds):
        for gateway in gateways:
            await gateway.shares.sync()


async def test_a_gateway_alone_has_all(gateways: list[Gateway]) -> None:
    await settle(gateways[:1])
    assert gateways[0].cap() == LIMIT
    assert gateways[0].ask(LIMIT)


async def test_idle_gateways_share_equally_and_one_that_leaves_gives_its_part_back(gateways: list[Gateway]) -> None:
    await settle(gateways[:1])
    await settle(gateways[:2])
    assert sorted(gateway.cap() for gateway in gateways[:2]) == [50, 50]
    await gateways[1].shares.close()
    await settle(gateways[:1])
    assert gateways[0].cap() == LIMIT


async def test_the_limit_moves_to_where_it_is_wanted(gateways: list[Gateway]) -> None:
    await settle(gateways[:2])
    assert not gateways[1].ask(80)
    await settle(gateways[:2])
    assert gateways[1].ask(80)
    assert not gateways[0].ask(30)


async def test_what_was_used_at_one_is_not_granted_at_another(gateways: list[Gateway], clock: ManualClock) -> None:
    await settle(gateways[:1])
    assert gateways[0].ask(90)
    await settle(gateways[:2])
    for _ in range(5):
        assert not gateways[1].ask(20)
        await settle(gateways[:2], 1)
    clock.advance(61.0)
    await settle(gateways[:2])
    assert not gateways[1].ask(60)
    await settle(gateways[:2])
    assert gateways[1].ask(60)


async def test_the_sum_stays_under_the_limit_whatever_happens(gateways: list[Gateway], clock: ManualClock) -> None:
    """No sixty seconds, over all gateways, hold more than the limit; and most of it is used."""
    await settle(gateways, 2)
    for step in range(120):
        clock.advance(1.5)
        busy = gateways[(step // 40) % 3]
        for gateway in gateways:
            for _ in range(4 if gateway is busy else 1):
                gateway.ask(7)
        await asyncio.gather(*(gateway.shares.sync() for gateway in gateways))
    granted = sorted(item for gateway in gateways for item in gateway.granted)
    for start_s, _ in granted:
        assert sum(tokens for at_s, tokens in granted if start_s <= at_s < start_s + 60) <= LIMIT
    assert sum(tokens for _, tokens in granted) >= 0.7 * LIMIT * 120 * 1.5 / 60


async def test_a_dead_gateways_part_is_free_after_a_while(gateways: list[Gateway], clock: ManualClock) -> None:
    await settle(gateways[:2])
    await settle(gateways[:1])
    assert gateways[0].shares.num_gateways == 2
    clock.advance(SILENCE_S - 1)
    await settle(gateways[:1])
    assert gateways[0].cap() == 50
    clock.advance(2)
    await settle(gateways[:1])
    assert gateways[0].shares.num_gateways == 1
    assert gateways[0].cap() == LIMIT
    # It was not dead after all: it must begin anew, with what is left.
    await settle(gateways[1:2], 1)
    assert gateways[1].cap() == 0
    await settle(gateways[:2])
    assert gateways[0].cap() + gateways[1].cap() <= LIMIT
    assert gateways[1].cap() > 30


async def test_while_the_database_is_away_shares_stay(gateways: list[Gateway], store_config: StoreConfig) -> None:
    away = Gateway("postgresql://nobody@/none?host=/nonexistent", store_config, ManualClock(), "gw-x")
    away.limits = StoredLimits(lambda _: KeyRules(tokens_per_minute=LIMIT), None, away.clock)
    await away.shares.start()
    away.limits.take(Caller(key_id="k"), LIMIT, 0, 0.0)
    await away.close()


@given(st.integers(1, 10_000), st.lists(st.integers(1, 20_000), min_size=1, max_size=6))
def test_fair_parts_of_what_is_wanted_are_the_whole(limit: int, wanted: list[int]) -> None:
    parts = [fair_share(limit, own, wanted[:at] + wanted[at + 1 :]) for at, own in enumerate(wanted)]
    assert abs(sum(parts) - limit) <= len(wanted)
    assert all(0 <= part <= limit for part in parts)
    if sum(wanted) <= limit:
        assert all(part >= own for part, own in zip(parts, wanted, strict=True))
