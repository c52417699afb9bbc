"""Each request is in exactly one count, once, whatever happened to it (bug case m-02)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tandem.core.clock import ManualClock
from tandem.engine.messages import NewRequest, Output
from tests.engine.front.fakes import FakeEngine, say, usage_of
from tests.engine.front.served import Running, running

PATH = "/v1/completions"


def body(prompt: str, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": prompt} | fields


async def mixed(engine: FakeEngine, request: NewRequest) -> AsyncIterator[Output]:
    prompt = bytes(request.prompt_token_ids)
    if prompt == b"held":
        yield Output(request.request_id, 0, [97, 97])
        await engine.hold()
    if prompt == b"failed":
        yield Output(request.request_id, 0, [], finish_reason="error", error="no")
        return
    async for output in say(b"abcd")(engine, request):
        yield output


async def abandon(server: Running, engine: FakeEngine) -> None:
    num_aborted = len(engine.aborted)
    async with server.http.post(PATH, json=body("held", stream=True)) as response:
        await response.content.readuntil(b"\n\n")
        response.close()
    await engine.wait_until(lambda engine: len(engine.aborted) == num_aborted + 1)


async def test_every_request_ends_in_exactly_one_counter() -> None:
    engine = FakeEngine(mixed)
    async with running(engine) as server:
        requests = [body("x")] * 3 + [body("x", max_tokens=2)] * 2 + [body("x" * 100), body("x", n=2)]
        usages = [(await server.post(PATH, request))[1]["usage"] for request in requests]
        await abandon(server, engine)
        await abandon(server, engine)
        assert (await server.post(PATH, body("failed")))[0] == 500
        assert (await server.post(PATH, body("", temperature=-1)))[0] == 400
        metrics = await server.metrics()
    finished = {
        reason: metrics[f'tandem_requests_finished_total{{finish_reason="{reason}"}}']
        for reason in ("stop", "length", "abort", "error")
    }
    assert finished == {"stop": 5, "length": 2, "abort": 2, "error": 1}
    assert sum(finished.values()) == len(engine.requests)
    assert metrics["tandem_prompt_tokens_total"] == sum(u["prompt_tokens"] for u in usages) + 2 * 4
    assert metrics["tandem_generation_tokens_total"] == sum(u["completion_tokens"] for u in usages) + 2 * 2
    assert metrics["tandem_time_to_first_token_seconds_count"] == 7 + 2
    assert metrics["tandem_request_duration_seconds_count"] == 7
    assert metrics["tandem_request_queue_time_seconds_count"] == 7
    assert metrics["tandem_time_per_output_token_seconds_count"] == 7
    assert metrics['tandem_requests_refused_total{reason="invalid"}'] == 1


async def test_times_are_the_clocks() -> None:
    clock = ManualClock(100.0)

    async def script(engine: FakeEngine, request: NewRequest) -> AsyncIterator[Output]:
        clock.advance(2.0)
        yield Output(request.request_id, 0, [97])
        clock.advance(0.5)
        yield Output(request.request_id, 0, [98, 98])
        clock.advance(1.0)
        yield Output(request.request_id, 0, [99], finish_reason="length", usage=usage_of(request, 4))

    async with running(FakeEngine(script)) as server:
        server.front.clock = clock
        await server.post(PATH, body("x"))
        metrics = await server.metrics()
    assert metrics["tandem_time_to_first_token_seconds_sum"] == pytest.approx(2.0)
    assert metrics["tandem_inter_token_latency_seconds_sum"] == pytest.approx(1.5)
    assert metrics["tandem_inter_token_latency_seconds_count"] == 2
    assert metrics["tandem_time_per_output_token_seconds_sum"] == pytest.approx(0.5)
    assert metrics["tandem_request_duration_seconds_sum"] == pytest.approx(3.5)


async def test_tokens_after_the_end_are_counted_as_waste() -> None:
    async def overrunning(engine: FakeEngine, request: NewRequest) -> AsyncIterator[Output]:
        yield Output(request.request_id, 0, list(b"abSTOPxy"))
        yield Output(request.request_id, 1, [97])
        yield Output(request.request_id, 0, [97, 97, 97])
        yield Output(request.request_id, 1, [97], finish_reason="length")

    engine = FakeEngine(overrunning)
    async with running(engine) as server:
        _, answer = await server.post(PATH, body("x", n=2, stop="STOP"))
        metrics = await server.metrics()
    assert [choice["text"] for choice in answer["choices"]] == ["ab", "aa"]
    assert answer["usage"]["completion_tokens"] == 6 + 2
    assert metrics["tandem_wasted_tokens_total"] == 2 + 3
    assert metrics['tandem_requests_finished_total{finish_reason="length"}'] == 1
