"""Probes and scrapes, over a `fetch` that answers what engines answer; and over the loops, with one that hangs."""

from __future__ import annotations

import asyncio
import random

import msgspec
import pytest

from tandem.config.deployment import EngineKind
from tandem.config.gateway_replicas import HealthConfig
from tandem.core.clock import ManualClock
from tandem.core.errors import ConfigError
from tandem.gateway.replicas.pool import Pool
from tandem.gateway.replicas.pools import Pools
from tandem.gateway.replicas.replica import Replica
from tandem.gateway.upstream.failures import ConnectFailed, Silent
from tests.gateway.replicas import documents
from tests.gateway.replicas.helpers import Answer, FakeFleet, make_pool

ONE_TOKEN = b'{"choices":[{"index":0,"text":"x","finish_reason":"length"}]}'
URL = "http://a:1"


class Bench:
    """One replica, a manual clock, and its watch driven by hand."""

    def __init__(self, kind: EngineKind) -> None:
        self.clock, self.fleet = ManualClock(100.0), FakeFleet()
        self.pool = make_pool(kind, URL)
        config = HealthConfig(jitter=0.0, probe_timeout_s=0.05, deep_probe_timeout_s=0.05, scrape_timeout_s=0.05)
        self.pools = Pools([self.pool], self.fleet.fetch, health=config, clock=self.clock, rng=random.Random(0))
        self.replica = self.pool.replicas[0]
        self.watch = self.pools._watches[self.replica]

    def set(self, path: str, answer: Answer) -> None:
        self.fleet.set(URL, path, answer)

    async def probe(self) -> str:
        await self.watch.probe()
        return self.replica.state

    async def scrape(self) -> Replica:
        await self.watch.scrape()
        return self.replica


READY = {
    "tandem": "/ready", "vllm": "/health", "sglang": "/health_generate", "tensorrt-llm": "/health", "tgi": "/health",
    "llama.cpp": "/health", "openvino": "/v2/health/ready", "openai": "/v1/models",
}  # fmt: skip
DEEP = {"vllm": "/v1/completions", "tensorrt-llm": "/health_generate", "openvino": "/v3/models"}
DEEP_ANSWER = {"vllm": ONE_TOKEN, "tensorrt-llm": b"", "openvino": b'{"data":[{"id":"m"}]}'}


def well(kind: EngineKind) -> Bench:
    bench = Bench(kind)
    bench.set(READY[kind], (200, b""))
    if kind in DEEP:
        bench.set(DEEP[kind], (200, DEEP_ANSWER[kind]))
    return bench


@pytest.mark.parametrize("kind", READY)
async def test_each_engine_comes_up_by_its_own_probe(kind: EngineKind) -> None:
    bench = well(kind)
    assert bench.replica.state == "starting"
    assert await bench.probe() == "up"
    assert bench.replica.up_since_s == 100.0
    assert bench.fleet.paths(URL) == [READY[kind], *([DEEP[kind]] if kind in DEEP else [])]


@pytest.mark.parametrize("kind", READY)
async def test_one_that_loads_is_not_up_and_says_why(kind: EngineKind) -> None:
    bench = Bench(kind)
    bench.set(READY[kind], (503, documents.LLAMA_LOADING))
    for _ in range(3):
        assert await bench.probe() == "starting"
    assert "Loading model" in bench.replica.reason


async def test_tandem_tells_its_reason() -> None:
    bench = Bench("tandem")
    bench.set("/ready", (503, b'{"status":"loading","reason":"the model is being loaded"}'))
    await bench.probe()
    assert bench.replica.reason == "the model is being loaded"


async def test_vllm_whose_loop_is_dead_behind_a_good_health() -> None:
    """Traffic once went for 85 minutes to an engine whose health said 200."""
    bench = well("vllm")
    assert await bench.probe() == "up"
    bench.set("/v1/completions", asyncio.Event())  # silent
    bench.clock.advance(31)
    assert await bench.probe() == "up"
    assert await bench.probe() == "down"
    assert "one token" in bench.replica.reason
    assert await bench.probe() == "down", "health alone doesn't bring it back"
    bench.set("/v1/completions", (200, ONE_TOKEN))
    assert await bench.probe() == "up"


@pytest.mark.parametrize(
    "answer", [(200, documents.SGLANG_EVENT), (200, b"not json"), (200, b'{"choices":null}'), (500, b""),
               (404, b'{"error":{"message":"The model `m` does not exist."}}')],
)  # fmt: skip
async def test_a_200_without_an_answer_in_it_is_no_health(answer: tuple[int, bytes]) -> None:
    bench = well("vllm")
    bench.set("/v1/completions", answer)
    for _ in range(3):
        assert await bench.probe() == "starting"


@pytest.mark.parametrize("answer", [(400, b'{"error":{"message":"no completions"}}'), (429, b""), (404, b"Not Found")])
async def test_a_refusal_of_the_deep_probe_is_no_death(answer: tuple[int, bytes]) -> None:
    bench = well("vllm")
    bench.set("/v1/completions", answer)
    assert await bench.probe() == "up"


async def test_deep_probes_are_rare_and_left_out_while_real_requests_are_answered() -> None:
    bench = well("vllm")
    await bench.probe()
    for _ in range(5):
        bench.clock.advance(2)
        await bench.probe()
    assert bench.fleet.paths(URL).count("/v1/completions") == 1
    bench.clock.advance(25)
    bench.pools.answered(bench.replica)
    await bench.probe()
    assert bench.fleet.paths(URL).count("/v1/completions") == 1
    bench.clock.advance(31)
    await bench.probe()
    assert bench.fleet.paths(URL).count("/v1/completions") == 2


async def test_a_busy_engine_is_not_taken_for_a_dead_one() -> None:
    """The probe waits behind real requests, which are answered meanwhile."""
    bench = well("vllm")
    await bench.probe()
    bench.clock.advance(60)
    bench.set("/v1/completions", Silent("nothing"))
    bench.fleet.before = lambda: bench.pools.answered(bench.replica)
    for _ in range(3):
        bench.clock.advance(60)
        assert await bench.probe() == "up"


async def test_openvino_is_ready_before_its_model_is() -> None:
    bench = well("openvino")
    bench.set("/v3/models", (200, b'{"data":[{"id":"other"}]}'))
    assert await bench.probe() == "starting"
    assert "'m'" in bench.replica.reason


async def test_an_api_without_a_list_of_models_is_up() -> None:
    bench = Bench("openai")
    bench.set("/v1/models", (404, b""))
    assert await bench.probe() == "up"
    bench.set("/v1/models", (401, b'{"error":{"message":"Incorrect API key"}}'))
    await bench.probe()
    assert await bench.probe() == "down"
    assert "Incorrect API key" in bench.replica.reason


async def test_one_failed_probe_is_no_verdict_but_a_refused_connection_is() -> None:
    bench = well("tandem")
    await bench.probe()
    bench.set("/ready", Silent("nothing"))
    assert await bench.probe() == "up"
    bench.set("/ready", (200, b""))
    assert await bench.probe() == "up"
    bench.set("/ready", Silent("nothing"))
    assert await bench.probe() == "up", "the count begins anew after a success"
    assert await bench.probe() == "down"
    bench.set("/ready", (200, b""))
    assert await bench.probe() == "up"
    bench.set("/ready", ConnectFailed("no connection"))
    assert await bench.probe() == "down"


async def test_a_draining_replica_is_not_brought_back_by_a_probe() -> None:
    bench = well("tandem")
    await bench.probe()
    await bench.pools.drain(bench.replica, 1.0)
    assert await bench.probe() == "draining"
    bench.set("/ready", ConnectFailed("gone"))
    assert await bench.probe() == "draining"


async def test_a_sleeping_engine_is_not_asked_for_a_token() -> None:
    bench = well("vllm")
    await bench.probe()
    bench.replica.is_asleep = True
    bench.clock.advance(1000)
    bench.set("/v1/completions", (500, b""))
    assert await bench.probe() == "up"


# Figures.


async def test_scrape_gives_signals_and_remembers_what_was_in_flight() -> None:
    bench = Bench("tandem")
    bench.set("/tandem/state", (200, documents.TANDEM_STATE))
    bench.replica.in_flight = 3
    bench.fleet.before = lambda: setattr(bench.replica, "in_flight", 2)
    replica = await bench.scrape()
    assert replica.signals is not None
    assert (replica.signals.taken_s, replica.signals.running) == (100.0, 3)
    assert replica.in_flight_when_scraped == 3
    assert replica.max_in_flight == 80  # a quarter more than its 64 seats


async def test_figures_that_are_too_old_are_marked_and_lose_their_load() -> None:
    bench = Bench("tandem")
    bench.set("/tandem/state", (200, documents.TANDEM_STATE))
    await bench.scrape()
    bench.set("/tandem/state", asyncio.Event())
    bench.clock.advance(9)
    fresh = (await bench.scrape()).signals
    assert fresh is not None
    assert not fresh.is_stale
    bench.clock.advance(2)
    stale = (await bench.scrape()).signals
    assert stale is not None
    assert (stale.is_stale, stale.running, stale.max_num_seqs, stale.taken_s) == (True, None, 64, 100.0)
    bench.set("/tandem/state", (200, documents.TANDEM_STATE))
    again = (await bench.scrape()).signals
    assert again is not None
    assert not again.is_stale


@pytest.mark.parametrize("answer", [(200, b"<html>"), (500, b""), ConnectFailed("x"), (404, b"")])
async def test_a_failed_scrape_changes_nothing_at_once(answer: Answer, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench("vllm")
    bench.set("/metrics", (200, documents.VLLM_NEW))
    before = (await bench.scrape()).signals
    bench.set("/metrics", answer)
    for _ in range(3):
        assert (await bench.scrape()).signals is before
    assert len(caplog.records) <= 1, "complained of once, not every second"


async def test_means_need_two_scrapes() -> None:
    bench = Bench("vllm")
    bench.set("/metrics", (200, documents.VLLM_NEW))
    first = (await bench.scrape()).signals
    assert first is not None
    assert first.ttft_s is None
    later = documents.VLLM_NEW.replace(b"latency_seconds_count{", b'latency_seconds_count{x="1",')
    later = later.replace(b'x="1",engine="0",model_name="m"} 100.0', b'engine="0"} 200.0')
    bench.set(
        "/metrics",
        (200, later.replace(b'latency_seconds_sum{engine="0",model_name="m"} 3.0', b"latency_seconds_sum 5.0")),
    )
    second = (await bench.scrape()).signals
    assert second is not None
    assert second.tpot_s == pytest.approx(0.02)


async def test_tensorrt_llm_without_perf_metrics_is_read_by_its_json() -> None:
    bench = Bench("tensorrt-llm")
    bench.set("/metrics", (200, documents.TENSORRT_LLM_ITERATIONS))
    await bench.scrape()
    signals = (await bench.scrape()).signals
    assert signals is not None
    assert signals.running == 2


# The loops.


async def test_a_hung_replica_delays_no_other() -> None:
    """gw-07: A accepts connections and never answers; B and C go on being probed and scraped."""
    fleet = FakeFleet()
    pool = make_pool("tandem", "http://hung:1", "http://b:1", "http://c:1")
    for path in ("/ready", "/tandem/state"):
        fleet.set("http://hung:1", path, asyncio.Event())
    for url in ("http://b:1", "http://c:1"):
        fleet.set(url, "/ready", (200, b""))
        fleet.set(url, "/tandem/state", (200, documents.TANDEM_STATE))
    config = HealthConfig(probe_period_s=0.01, scrape_period_s=0.01, probe_timeout_s=5.0, scrape_timeout_s=5.0)
    pools = Pools([pool], fleet.fetch, health=config)
    seen: list[str] = []
    pools.on_up(lambda replica: seen.append(replica.url))
    await pools.start()
    try:
        async with asyncio.timeout(5):
            while min(fleet.paths(url).count("/ready") for url in ("http://b:1", "http://c:1")) < 5:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
    finally:
        await pools.stop()
    assert sorted(seen) == ["http://b:1", "http://c:1"]
    assert fleet.paths("http://hung:1").count("/ready") == 1
    assert [replica.state for replica in pool.replicas] == ["starting", "up", "up"]


async def test_a_bug_in_an_adapter_does_not_end_the_watch(caplog: pytest.LogCaptureFixture) -> None:
    fleet = FakeFleet()
    pool = make_pool("tandem", "http://a:1")
    fleet.set("http://a:1", "/ready", ZeroDivisionError("a bug"))
    pools = Pools([pool], fleet.fetch, health=HealthConfig(probe_period_s=0.001))
    await pools.start()
    try:
        async with asyncio.timeout(5):
            while fleet.paths("http://a:1").count("/ready") < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
    finally:
        await pools.stop()
    assert "went wrong" in caplog.text


async def test_an_address_that_cannot_be_is_said() -> None:
    bench = Bench("tandem")
    bench.set("/ready", ConfigError("'ftp://x' is no address of a replica"))
    bench.set("/tandem/state", ConfigError("'ftp://x' is no address of a replica"))
    assert await bench.probe() == "starting"
    assert "no address" in bench.replica.reason
    assert (await bench.scrape()).signals is None


async def test_periods_vary_so_that_replicas_are_not_asked_at_once() -> None:
    watch = Bench("tandem").watch
    watch._config = HealthConfig(jitter=0.2)
    periods = {watch._jittered(10.0) for _ in range(100)}
    assert len(periods) > 90
    assert 8.0 <= min(periods) < 9 < 11 < max(periods) <= 12.0


async def test_the_one_token_request_is_for_the_engines_own_model() -> None:
    pool = Pool(name="p", model="served-name", engine="vllm")
    call = pool.make_replica(URL).adapter.deep_probe(pool.model)
    assert call is not None
    body = msgspec.json.decode(call[2] or b"")
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("served-name", 1, 0)
