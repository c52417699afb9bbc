"""The whole gateway from its configuration: a real store, real sockets, an engine that tests direct."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio

from tandem.config.deployment import TandemConfig
from tandem.config.gateway_store import KeyConfig
from tandem.core.errors import ConfigError
from tandem.gateway.assembly import Assembly, check_pools, is_loopback
from tandem.gateway.cache_events import CacheEvents
from tandem.gateway.discovery import Discovery, Named, parse_replica
from tandem.gateway.replicas.replica import Replica
from tandem.gateway.serving import Serving, serve
from tandem.protocol.state import BlockEvicted, BlockStored, KVEvent, KVEventBatch
from tests.gateway.fakes import PATIENCE_S, Call, FakeEngine, well

CHAT = {"model": "m", "messages": [{"role": "user", "content": "x" * 4000}], "max_tokens": 4}


def config(folder: Path, url: str, **pool: Any) -> TandemConfig:
    values = {
        "version": 1,
        "gateway": {
            "listen": "127.0.0.1:0",
            "database": f"sqlite:///{folder}/tandem.db",
            "store": {"data_dir": str(folder / "data")},
            "health": {"probe_period_s": 0.05},
        },
        "pool": [{"name": "p", "model": "m", "provider": "endpoints", "engine": "openai", "endpoints": [url]} | pool],
    }
    return msgspec.convert(values, TandemConfig)


async def healthy(call: Call) -> None:
    if call.method == "POST":
        await well(call)
    else:
        call.answer({"object": "list", "data": [{"id": "m", "object": "model", "created": 1, "owned_by": "x"}]})


class Running:
    def __init__(self, assembly: Assembly, serving: Serving, http: aiohttp.ClientSession) -> None:
        self.assembly, self.http, self.url = assembly, http, serving.address

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.http.get(self.url + path) as answer:
            return answer.status, await answer.json()

    async def post(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        async with self.http.post(self.url + path, json=body) as answer:
            return answer.status, await answer.json()

    async def is_up(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while (await self.get("/tandem/gateway"))[1]["pools"][0]["replicas"][0]["state"] != "up":  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    fake = FakeEngine(healthy)
    await fake.start()
    yield fake
    await fake.stop()


@pytest_asyncio.fixture
async def running(engine: FakeEngine, tmp_path: Path) -> AsyncIterator[Running]:
    assembly = Assembly(config(tmp_path, engine.url))
    await assembly.start()
    serving = await serve(assembly.app(), "127.0.0.1", 0)
    async with aiohttp.ClientSession() as http:
        yield Running(assembly, serving, http)
    await serving.close(0.1)
    await assembly.close()


async def test_what_comes_in_is_answered_counted_and_explained(running: Running) -> None:
    await running.is_up()
    status, answer = await running.post("/v1/chat/completions", CHAT)
    assert (status, answer["choices"][0]["message"]["content"]) == (200, "hello")
    status, route = await running.get("/tandem/route?model=m&class=batch&prompt_tokens=50")
    assert (route["chosen"], route["service_class"], route["prompt_tokens"]) == (
        route["candidates"][0]["replica"],
        "batch",
        50,
    )
    status, route = await running.post("/tandem/route", CHAT)
    assert route["prompt_tokens"] > 100
    await running.assembly.ledger.flush()
    status, usage = await running.get("/tandem/usage?group_by=pool")
    assert [(item["pool"], item["requests"], item["output_tokens"]) for item in usage["data"]] == [("p", 1, 3)]


async def test_questions_about_routes_are_checked(running: Running) -> None:
    for path, param in (("/tandem/route", "model"), ("/tandem/route?model=m&class=quick", "class")):
        status, body = await running.get(path)
        assert (status, body["error"]["param"]) == (400, param)
    status, body = await running.get("/tandem/route?model=nobody")
    assert (status, body["error"]["code"]) == (404, "model_not_found")


async def test_a_reload_changes_aliases_and_keys_and_names_what_it_cannot(
    running: Running, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPERATOR", "a-key-that-is-long-enough")
    fresh = config(tmp_path, engine.url, aliases=["n"])
    gateway = msgspec.structs.replace(fresh.gateway, listen="127.0.0.1:1")
    kept = running.assembly.reload(msgspec.structs.replace(fresh, gateway=gateway))
    assert len(kept) == 1
    assert "listen" in kept[0]
    assert list(running.assembly.pools.aliases()) == ["n"]
    keys = msgspec.convert([{"name": "op", "key": "env:OPERATOR", "admin": True}], tuple[KeyConfig, ...])
    running.assembly.reload(msgspec.structs.replace(fresh, gateway=msgspec.structs.replace(fresh.gateway, key=keys)))
    assert (await running.get("/v1/models"))[0] == 401


async def test_a_pool_that_is_gone_takes_nothing_more(running: Running, engine: FakeEngine, tmp_path: Path) -> None:
    await running.is_up()
    fresh = config(tmp_path, engine.url, name="q", model="other")
    running.assembly.reload(fresh)
    status, body = await running.post("/v1/chat/completions", CHAT)
    assert (status, body["error"]["code"]) == (404, "model_not_found")


async def test_evictions_are_asked_for_and_shrink_the_index(running: Running, engine: FakeEngine) -> None:
    replica = running.assembly.pools.all_replicas()[0]
    index = running.assembly._policy_parts.index
    hashes = tuple(bytes([i]) * 8 for i in range(8))
    index.add(replica.id, hashes, 800)
    asked: list[str] = []

    async def fetch(
        replica: Replica, method: str, path: str, body: bytes | None, timeout_s: float
    ) -> tuple[int, bytes]:
        asked.append(path)
        batches: dict[int, list[KVEvent]] = {
            0: [BlockStored(sequence=1, block_hashes=["a"], parent_hash=None, block_size=16)],
            1: [BlockEvicted(sequence=2, block_hashes=["a"] * 50)],
        }
        return 200, msgspec.json.encode(KVEventBatch(events=batches.get(len(asked) - 1, [])))

    events = CacheEvents(running.assembly.pools, index, fetch)
    for _ in range(3):
        await events.ask(replica)
    assert asked == [f"/tandem/kv-events?after={n}" for n in (0, 1, 2)]
    assert index.num_hits(replica.id, hashes) < len(hashes)


async def test_engines_that_say_nothing_of_their_caches_harm_nobody(running: Running) -> None:
    async def fetch(
        replica: Replica, method: str, path: str, body: bytes | None, timeout_s: float
    ) -> tuple[int, bytes]:
        raise ConnectionRefusedError

    await CacheEvents(running.assembly.pools, running.assembly._policy_parts.index, fetch).ask(
        running.assembly.pools.all_replicas()[0]
    )


async def test_replicas_named_by_address_are_asked_for_their_models(running: Running, engine: FakeEngine) -> None:
    await Discovery([Named("openai", engine.url)]).run(running.assembly.pools)
    pool = running.assembly.pools.pool("openai/m")
    assert [replica.url for replica in pool.replicas] == [engine.url]


def test_a_replica_on_the_command_line_is_checked() -> None:
    assert parse_replica("llama.cpp=http://h:1/") == Named("llama.cpp", "http://h:1")
    for text in ("vllm", "what=http://h:1", "vllm=h:1"):
        with pytest.raises(ConfigError, match="KIND=URL"):
            parse_replica(text)


@pytest.mark.parametrize(
    ("listen", "expected"),
    [("127.0.0.1:1", True), ("[::1]:1", True), ("localhost:1", True), ("0.0.0.0:1", False), ("example.org:1", False)],
)
def test_only_loopback_needs_no_key(listen: str, expected: bool) -> None:
    assert is_loopback(listen) is expected


async def test_from_elsewhere_admin_routes_need_a_key(engine: FakeEngine, tmp_path: Path) -> None:
    fresh = config(tmp_path, engine.url)
    gateway = msgspec.structs.replace(fresh.gateway, listen="0.0.0.0:0")
    assembly = Assembly(msgspec.structs.replace(fresh, gateway=gateway))
    await assembly.start()
    serving = await serve(assembly.app(), "127.0.0.1", 0)
    async with aiohttp.ClientSession() as http, http.get(serving.address + "/tandem/gateway") as answer:
        assert answer.status == 403
    await serving.close(0.1)
    await assembly.close()


def test_pools_without_endpoints_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no endpoints"):
        check_pools(config(tmp_path, "http://h:1", endpoints=[]))
    with pytest.raises(ConfigError, match=r"no \[\[pool\]\]"):
        check_pools(TandemConfig(version=1))
