"""Which replicas serve an alias, and what becomes of them while the gateway runs."""

from __future__ import annotations

import asyncio
import random

import pytest

from tandem.config.deployment import PoolConfig
from tandem.config.gateway_replicas import CircuitConfig, HealthConfig
from tandem.core.clock import ManualClock
from tandem.core.errors import ConfigError, NotFound, Unavailable
from tandem.gateway.replicas import wake
from tandem.gateway.replicas.pool import Pool
from tandem.gateway.replicas.pool import make_pool as pool_of
from tandem.gateway.replicas.pools import Pools
from tandem.gateway.replicas.provided import Provided
from tandem.gateway.replicas.reload import reload
from tandem.gateway.replicas.replica import Replica
from tandem.gateway.upstream.failures import ConnectFailed
from tests.gateway.replicas import documents
from tests.gateway.replicas.helpers import FakeFleet, make_pool


def make(*pools: Pool) -> tuple[Pools, FakeFleet, ManualClock]:
    fleet, clock = FakeFleet(), ManualClock(10.0)
    made = Pools(
        pools, fleet.fetch, health=HealthConfig(jitter=0.0, failures_to_down=1),
        circuit=CircuitConfig(failures_to_open=2, outlier_min_requests=5), clock=clock, rng=random.Random(0),
    )  # fmt: skip
    return made, fleet, clock


def test_an_alias_over_several_pools_and_roles() -> None:
    paged = make_pool("vllm", "http://a:1", name="paged", aliases=("chat", "fast"), roles=("interactive",))
    compiled = make_pool("tandem", "http://b:1", "http://b:2", name="compiled", aliases=("chat",))
    pools, _, _ = make(paged, compiled)
    assert pools.aliases() == ["chat", "fast"]
    assert [pool.name for pool in pools.resolve("chat")] == ["paged", "compiled"]
    assert [r.url for r in pools.replicas("chat", "interactive")] == ["http://a:1", "http://b:1", "http://b:2"]
    assert [r.url for r in pools.replicas("chat", "batch")] == ["http://b:1", "http://b:2"]
    assert list(pools.replicas("fast", "batch")) == []
    with pytest.raises(NotFound, match=r"chat, fast") as raised:
        pools.replicas("other", "interactive")
    assert raised.value.code == "model_not_found"


def test_a_pool_of_the_configuration() -> None:
    config = PoolConfig(
        name="chat", model="smollm2", engine="vllm", provider="endpoints", price_per_hour=2.0, max_output_tokens=100,
        endpoints=("http://10.0.0.1:8000/", "http://user:pw@host:8001"), roles=("batch",),
    )  # fmt: skip
    pool = pool_of(config, aliases=("gpt",), api_key="k", max_concurrency=9, has_priorities=True)
    assert [replica.id for replica in pool.replicas] == ["chat/10.0.0.1:8000", "chat/host:8001"]
    assert pool.replicas[0].url == "http://10.0.0.1:8000"
    assert pool.replicas[0].max_in_flight == 9
    assert (pool.model, pool.names, pool.api_key, pool.options.has_priorities) == ("smollm2", ("gpt",), "k", True)
    assert pool_of(config).names == ("smollm2",)


def test_two_pools_of_one_name() -> None:
    with pytest.raises(ConfigError, match="unique"):
        make(make_pool(name="x"), make_pool(name="x"))


async def test_listeners_hear_when_one_comes_up_and_comes_back() -> None:
    """gw-07: A comes back without a restart."""
    pools, fleet, _ = make(make_pool("tandem", "http://a:1"))
    heard: list[str] = []
    pools.on_up(lambda replica: heard.append(replica.id))
    fleet.set("http://a:1", "/ready", (200, b""))
    await pools.probe_once()
    await pools.probe_once()
    assert heard == ["p/a:1"]
    fleet.set("http://a:1", "/ready", ConnectFailed("x"))
    await pools.probe_once()
    fleet.set("http://a:1", "/ready", (200, b""))
    await pools.probe_once()
    assert heard == ["p/a:1", "p/a:1"]


async def test_going_down_forgets_the_load_but_not_what_is_in_flight() -> None:
    pools, fleet, _ = make(make_pool("tandem", "http://a:1"))
    replica = pools.all_replicas()[0]
    set_up(replica)
    replica.in_flight = 4
    replica.signals = replica.adapter.parse_signals(documents.TANDEM_STATE, 0.0)
    fleet.set("http://a:1", "/ready", ConnectFailed("x"))
    await pools.probe_once()
    assert replica.state == "down"
    assert replica.signals.is_stale
    assert replica.in_flight == 4


def test_failures_of_requests_eject_and_an_answer_brings_back() -> None:
    pools, _, clock = make(make_pool("tandem", "http://a:1"))
    replica = pools.all_replicas()[0]
    replica.state = "up"
    heard: list[Replica] = []
    pools.on_up(heard.append)
    pools.failed(replica, "silent")
    pools.failed(replica, "silent")
    assert not replica.is_available(clock.now())
    pools.tick()
    assert heard == []
    clock.advance(5)
    pools.tick()
    assert heard == [replica], "those who wait may send the trial"
    assert replica.max_in_flight == 1
    pools.answered(replica)
    assert heard == [replica, replica]
    assert replica.max_in_flight == 128


def test_outliers_are_ejected_by_the_tick() -> None:
    pools, _, clock = make(make_pool("tandem", "http://a:1", "http://b:1", "http://c:1"))
    a, b, c = pools.all_replicas()
    for replica in (a, b, c):
        replica.state = "up"
        for _ in range(20):
            pools.answered(replica, 2.0 if replica is c else 0.1)
    clock.advance(11)
    pools.tick()
    assert [replica.is_available(clock.now()) for replica in (a, b, c)] == [True, True, False]


async def test_replicas_come_and_go_at_run_time() -> None:
    pools, fleet, _ = make(make_pool("tandem", name="p"))
    assert list(pools.replicas("chat", "batch")) == []
    replica = pools.put_replica("p", "unix:///run/t/p-0.sock", "p-0")
    assert pools.replicas("chat", "batch") == (replica,)
    fleet.set(replica.url, "/ready", (200, b""))
    await pools.probe_once()
    assert replica.is_available(10.0)
    replica.in_flight = 1
    draining = asyncio.create_task(pools.drain_and_remove(replica, 5.0))
    await asyncio.sleep(0)
    assert replica.state == "draining"
    assert not replica.is_available(10.0)
    assert not draining.done()
    replica.in_flight = 0
    assert await draining
    assert list(pools.replicas("chat", "batch")) == []


async def test_draining_ends_at_its_limit() -> None:
    pools, _, _ = make(make_pool("tandem", "http://a:1"))
    replica = pools.all_replicas()[0]
    replica.in_flight = 1
    assert not await pools.drain(replica, 0.01)


async def test_a_provider_that_restarts_an_engine_at_another_address() -> None:
    pools, fleet, _ = make(make_pool("tandem", name="p"))
    provided = Provided(pools, drain_timeout_s=0.01)
    engine = _Engine()
    gone: list[str] = []
    pools.on_gone(lambda replica: gone.append(replica.id))
    provided.event("started", engine)
    replica = pools.all_replicas()[0]
    fleet.set("http://127.0.0.1:1001", "/ready", (200, b""))
    await pools.probe_once()
    assert (replica.id, replica.state) == ("p-0", "up")
    provided.event("ended", engine)
    assert (replica.state, replica.reason) == ("down", "ended with SIGKILL")
    engine.url = "http://127.0.0.1:1002"
    provided.event("started", engine)
    assert pools.all_replicas() == [replica], "the same replica, at a new address"
    assert (replica.state, replica.url) == ("starting", "http://127.0.0.1:1002")
    assert gone == ["p-0"], "what was learnt of the old process is forgotten"
    await provided.drain(engine)
    assert replica.state == "draining"
    provided.event("stopped", engine)
    assert pools.all_replicas() == []
    provided.event("ended", engine)  # of one that is unknown by now: nothing happens


def set_up(replica: Replica) -> None:
    """In a function, so that the type checker doesn't think that it stays so."""
    replica.state = "up"


class _Engine:
    id, pool, url, reason = "p-0", "p", "http://127.0.0.1:1001", "ended with SIGKILL"


async def test_reload_keeps_what_is_the_same_and_drains_what_is_gone() -> None:
    kept = make_pool("tandem", "http://a:1", "http://a:2", name="kept")
    gone = make_pool("tandem", "http://g:1", name="gone", aliases=("old",))
    pools, fleet, _ = make(kept, gone)
    a1, a2, g1 = pools.all_replicas()
    for replica in (a1, a2, g1):
        replica.state, replica.in_flight = "up", 1
    provided = pools.put_replica("kept", "unix:///p.sock", "kept-0")
    new = make_pool("tandem", "http://a:1", "http://a:3", name="kept", aliases=("chat", "new"), price_per_hour=3.0)
    reload(pools, [new, make_pool("vllm", "http://n:1", name="fresh", aliases=("other",))])
    assert pools.aliases() == ["chat", "new", "other"]
    assert [r.url for r in pools.pool("kept").replicas] == ["http://a:1", "http://a:2", "unix:///p.sock", "http://a:3"]
    assert (a1.state, a2.state, g1.state, provided.state) == ("up", "draining", "draining", "starting")
    assert pools.pool("kept") is kept
    assert kept.price_per_hour == 3.0
    a2.in_flight = g1.in_flight = 0
    async with asyncio.timeout(5):
        while pools._tasks:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert a2 not in kept.replicas
    with pytest.raises(NotFound):
        pools.resolve("old")
    del fleet


async def test_an_endpoint_that_is_taken_out_and_put_in_again_before_it_has_drained_stays() -> None:
    pools, _, _ = make(make_pool("tandem", "http://a:1"))
    [replica] = pools.all_replicas()
    replica.in_flight = 1
    reload(pools, [make_pool("tandem")])
    await asyncio.sleep(0)
    assert replica.reason == "it is being drained"
    reload(pools, [make_pool("tandem", "http://a:1")])
    replica.in_flight = 0
    async with asyncio.timeout(5):
        while pools._tasks:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert pools.all_replicas() == [replica]
    assert replica.state == "starting"


async def test_reload_to_another_engine_is_another_pool() -> None:
    pools, _, _ = make(make_pool("tandem", "http://a:1", name="x"))
    old = pools.all_replicas()[0]
    reload(pools, [make_pool("vllm", "http://a:1", name="x")])
    [fresh] = pools.all_replicas()
    assert fresh is not old
    assert fresh.adapter.kind == "vllm"
    await pools.stop()


async def test_start_and_stop_leave_no_task() -> None:
    pools, _, _ = make(make_pool("tandem", "http://a:1"))
    before = asyncio.all_tasks()
    await pools.start()
    pools.put_replica("p", "http://a:2")
    await asyncio.sleep(0.01)
    await pools.stop()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def test_rotation_has_no_state_between_models() -> None:
    """gw-07: /v1/models goes on naming m1 while its replica is down."""
    pools, _, _ = make(make_pool("tandem", "http://a:1", name="x", aliases=("m1",)))
    pools.all_replicas()[0].state = "down"
    assert pools.aliases() == ["m1"]
    assert len(pools.replicas("m1", "interactive")) == 1


# Sleep and wake.


async def test_sleep_and_wake() -> None:
    pool = make_pool("vllm", "http://a:1")
    replica, fleet = pool.replicas[0], FakeFleet()
    fleet.set(replica.url, "/sleep?level=1", (200, b""))
    fleet.set(replica.url, "/wake_up", (200, b""))
    fleet.set(replica.url, "/is_sleeping", (200, b'{"is_sleeping":true}'))
    assert await wake.sleep(replica, fleet.fetch)
    assert replica.is_asleep
    assert await wake.is_asleep(replica, fleet.fetch)
    assert await wake.wake(replica, fleet.fetch)
    assert not replica.is_asleep


async def test_an_engine_that_refuses_to_sleep_is_awake() -> None:
    replica, fleet = make_pool("vllm", "http://a:1").replicas[0], FakeFleet()
    with pytest.raises(Unavailable, match="404"):
        await wake.sleep(replica, fleet.fetch)
    assert not replica.is_asleep
    assert await wake.is_asleep(replica, fleet.fetch) is None


async def test_engines_that_cannot_sleep() -> None:
    replica, fleet = make_pool("tgi", "http://a:1").replicas[0], FakeFleet()
    assert not await wake.sleep(replica, fleet.fetch)
    assert not await wake.wake(replica, fleet.fetch)
    assert fleet.calls == []
