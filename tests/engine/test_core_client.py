"""The core in its own process, for real: started, asked, left, killed, drained."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tandem.config.engine import EngineConfig
from tandem.core.errors import EngineFailed, MemoryTooSmall, ModelUnsupported, Unavailable
from tandem.core.sampling_params import SamplingParams
from tandem.engine.core_client import CoreClient
from tandem.engine.messages import NewRequest, Output
from tandem.protocol.state import BlockStored, CacheResync, KVEventBatch
from tests.engine.models.tiny import llama_config, save_random


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_random(llama_config(max_position_embeddings=100_000), folder)
    return folder


def config(model: Path, **changes: object) -> EngineConfig:
    values = {"model": str(model), "dtype": "float32", "num_blocks": 512, "threads": 1, "max_num_seqs": 4}
    return EngineConfig(**values | changes)  # type: ignore[arg-type]


@pytest.fixture
async def client(model: Path) -> AsyncIterator[CoreClient]:
    made = CoreClient()
    await made.start(config(model))
    await made.wait_ready()
    yield made
    made.kill()


def request(name: str, max_tokens: int, n: int = 1) -> NewRequest:
    sampling = SamplingParams(max_tokens=max_tokens, n=n, temperature=0, ignore_eos=True, seed=0)
    return NewRequest(request_id=name, prompt_token_ids=[1, 5, 9], sampling=sampling, arrival_s=0.0)


async def collect(client: CoreClient, new: NewRequest) -> list[Output]:
    return [output async for output in client.generate(new)]


async def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - the condition lies in another process.
            await asyncio.sleep(0.005)


def num_running(client: CoreClient) -> int:
    return sum(client.stats.num_running.values())


async def test_requests_run_together_and_end_with_usage(client: CoreClient) -> None:
    assert client.info is not None
    assert client.info.max_model_len == 512 * 16
    results = await asyncio.gather(*(collect(client, request(str(i), 10 + i, n=1 + i % 2)) for i in range(4)))
    for index, outputs in enumerate(results):
        last = [output for output in outputs if output.finish_reason]
        assert [output.finish_reason for output in last] == ["length"] * (1 + index % 2)
        assert all(output.usage and output.usage.num_output_tokens == 10 + index for output in last)
        assert sum(len(output.token_ids) for output in outputs) == (10 + index) * (1 + index % 2)
    await until(lambda: num_running(client) == 0)
    assert client.stats.num_held_blocks == 0
    assert client.stats.num_wasted_tokens == 0


async def test_leaving_the_generator_aborts_all_answers(client: CoreClient) -> None:
    generator = client.generate(request("left", 8000, n=3))
    await anext(generator)
    await until(lambda: num_running(client) == 3)
    await generator.aclose()
    await until(lambda: num_running(client) == 0)
    assert client.stats.num_held_blocks == 0


async def test_a_cancelled_task_aborts_too(client: CoreClient) -> None:
    task = asyncio.create_task(collect(client, request("cancelled", 8000)))
    await until(lambda: num_running(client) == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: num_running(client) == 0)


async def test_a_killed_core_fails_what_runs_and_is_noticed(client: CoreClient) -> None:
    tasks = [asyncio.create_task(collect(client, request(str(i), 8000))) for i in range(2)]
    await until(lambda: num_running(client) == 2)
    assert client.pid is not None
    os.kill(client.pid, signal.SIGKILL)
    for task in tasks:
        with pytest.raises(EngineFailed, match="died"):
            await task
    assert not client.is_alive
    with pytest.raises(EngineFailed):
        await collect(client, request("late", 1))


async def test_draining_lets_running_requests_finish(client: CoreClient) -> None:
    task = asyncio.create_task(collect(client, request("long", 300)))
    await until(lambda: num_running(client) == 1)
    await client.drain(timeout_s=30.0)
    outputs = await task
    assert outputs[-1].finish_reason == "length"
    assert not client.is_alive
    with pytest.raises(Unavailable):
        await collect(client, request("late", 1))


async def test_draining_ends_at_its_limit(client: CoreClient) -> None:
    task = asyncio.create_task(collect(client, request("endless", 8000)))
    await until(lambda: num_running(client) == 1)
    await client.drain(timeout_s=0.0)
    with pytest.raises(EngineFailed):
        await task


async def test_the_idle_core_gives_signs_of_life(client: CoreClient) -> None:
    first = client.stats.time_s
    await until(lambda: client.stats.time_s > first)
    assert client.heartbeat_age_s() < 10


async def test_changes_of_the_prefix_cache_are_reported_while_somebody_watches(client: CoreClient) -> None:
    await collect(client, request("before", 40))
    batches: list[KVEventBatch] = []
    client.watch_cache(batches.append)
    await until(lambda: bool(batches))
    (resync,) = batches[0].events
    assert isinstance(resync, CacheResync)
    assert len(resync.block_hashes) == 2, "43 tokens, of which the last has no KV, are two full blocks of 16"
    prompt = request("after", 20)
    prompt.prompt_token_ids = [7] * 20
    await collect(client, prompt)
    stored = [event for batch in batches[1:] for event in batch.events]
    assert all(isinstance(event, BlockStored) for event in stored)
    assert sum(len(event.block_hashes) for event in stored) == 2
    await until(lambda: client.stats.kv_events_sequence == stored[-1].sequence)
    client.watch_cache(None)
    await collect(client, request("unseen", 50))
    assert client.stats.kv_events_sequence == stored[-1].sequence


async def test_what_keeps_a_model_from_loading_is_raised(model: Path, tmp_path: Path) -> None:
    client = CoreClient()
    await client.start(config(model, max_model_len=90_000))
    with pytest.raises(MemoryTooSmall, match=r"8,192 tokens would fit"):
        await client.wait_ready()
    (tmp_path / "config.json").write_text('{"architectures": ["BertModel"], "model_type": "bert"}')
    client = CoreClient()
    await client.start(config(tmp_path))
    with pytest.raises(ModelUnsupported, match="BertModel"):
        await client.wait_ready()
    await client.wait_gone()
