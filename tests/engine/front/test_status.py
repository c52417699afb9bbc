"""Health that means something, readiness, models, and the engine's state."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from tandem import __version__
from tandem.engine.messages import EngineStats
from tandem.protocol.state import EngineState, StepSample
from tests.engine.front.fakes import FakeEngine, say
from tests.engine.front.served import Running, running


async def status_of(server: Running, path: str) -> tuple[int, dict[str, Any]]:
    status, text = await server.get(path)
    return status, json.loads(text)


async def test_a_healthy_engine() -> None:
    async with running(FakeEngine(say(b"a"))) as server:
        assert await status_of(server, "/health") == (200, {"status": "ok", "reason": None})
        assert await status_of(server, "/ready") == (200, {"status": "ok", "reason": None})


@pytest.mark.parametrize(
    ("situation", "health", "why"),
    [
        ("loading", 200, "loading"),
        ("draining", 200, "shutting down"),
        ("dead", 503, "out of memory"),
        ("hung", 503, "31 s"),
        ("hung while draining", 503, "31 s"),
    ],
)
async def test_an_engine_that_takes_nothing(situation: str, health: int, why: str) -> None:
    engine = FakeEngine(say(b"a"))
    async with running(engine) as server:
        if situation == "loading":
            engine.info = None
        if situation == "dead":
            engine.die("out of memory")
        if "hung" in situation:
            engine.heartbeat_s = 31.0
        server.front.is_draining = "draining" in situation
        assert (await status_of(server, "/health"))[0] == health
        status, answer = await status_of(server, "/ready")
        assert status == 503
        if situation != "hung while draining":
            assert why in answer["reason"]
        for path in ("/v1/chat/completions", "/v1/completions", "/tokenize"):
            async with server.http.post(path, data=b"{}") as response:
                assert response.status == 503
                assert int(response.headers["Retry-After"]) >= 1
                assert (await response.json())["error"]["code"] == "unavailable"
        assert (await server.get("/v1/models"))[0] == 200
        assert (await status_of(server, "/tandem/state"))[1]["is_ready"] is False
    assert engine.requests == []


async def test_models_and_version() -> None:
    async with running(FakeEngine(say(b"a"))) as server:
        listed = await server.openai.models.list()
        assert [(model.id, model.object) for model in listed.data] == [("m", "model")]
        assert (await server.openai.models.retrieve("m")).model_dump()["max_model_len"] == 1000
        assert await status_of(server, "/version") == (200, {"version": __version__})
        assert (await status_of(server, "/v1/models/org/other"))[0] == 404


async def test_state() -> None:
    engine = FakeEngine(say(b"a"))
    async with running(engine) as server:
        assert engine.listener is not None
        for number in range(1, 4):
            engine.stats = EngineStats(
                time_s=0.0, num_running={"interactive": 1}, num_waiting={"batch": 4}, num_queued_prompt_tokens=70,
                num_blocks=10, num_free_blocks=5, num_cached_blocks=2, num_held_blocks=3, num_allocated_slots=48,
                num_empty_slots=6, num_steps=number, last_step_s=0.1 * number, last_step_tokens=number,
                last_step_seqs=1, kv_events_sequence=9, prefix_queries=30, prefix_hits=10,
            )  # fmt: skip
            engine.listener(engine.stats)
            engine.listener(engine.stats)  # a heartbeat repeats the newest step
        state = msgspec.json.decode((await server.get("/tandem/state"))[1], type=EngineState)
        metrics = await server.metrics()
    assert (state.version, state.model, state.runner, state.is_ready) == (__version__, "m", "fake", True)
    assert (state.running, state.waiting, state.queued_prompt_tokens) == ({"interactive": 1}, {"batch": 4}, 70)
    assert (state.blocks.free, state.blocks.cached, state.blocks.held) == (5, 2, 3)
    assert (state.slots.allocated, state.slots.empty) == (48, 6)
    assert state.recent_steps == [StepSample(0.1 * n, n, 1) for n in (1, 2, 3)]
    assert (state.kv_events_sequence, state.counters.prefix_hits) == (9, 10)
    assert metrics["tandem_step_time_seconds_count"] == 3
    assert metrics["tandem_kv_fragmentation_ratio"] == 0.125
    assert metrics['tandem_requests_waiting{class="batch"}'] == 4
