"""Bounded waiting: 429 before tokenising for requests, after it for tokens, and a Retry-After that means something."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tandem.core.errors import InvalidRequest, Overloaded
from tandem.engine.front.admission import Admission, retry_after_s
from tandem.engine.messages import EngineStats, NewRequest, Output
from tests.engine.front.fakes import FakeEngine
from tests.engine.front.served import running

IDLE = EngineStats(time_s=0.0)
BUSY = EngineStats(time_s=0.0, last_step_s=0.1, last_step_tokens=50)


def test_free_seats_are_room() -> None:
    admission = Admission(max_queued_requests=0, max_queued_tokens=100)
    tickets = [ticket for _ in range(4) for ticket in admission.admit(1, 1, 4, IDLE)]
    with pytest.raises(Overloaded):
        admission.admit(1, 1, 4, IDLE)
    tickets[0].start()
    with pytest.raises(Overloaded):
        admission.admit(1, 1, 4, IDLE)
    tickets[0].close()
    tickets[0].close()
    assert admission.admit(1, 1, 4, IDLE)


def test_counts_return_to_zero_however_a_ticket_ends() -> None:
    admission = Admission(max_queued_requests=10, max_queued_tokens=100)
    for ends_early in (True, False):
        tickets = admission.admit(2, 3, 4, IDLE)
        assert (admission.num_seqs, admission.num_waiting_seqs) == (6, 6)
        admission.charge_tokens(tickets, [5, 6], IDLE)
        assert admission.num_waiting_tokens == 11
        if not ends_early:
            tickets[0].start()
            assert (admission.num_seqs, admission.num_waiting_seqs, admission.num_waiting_tokens) == (6, 3, 6)
        for ticket in tickets:
            ticket.close()
        assert (admission.num_seqs, admission.num_waiting_seqs, admission.num_waiting_tokens) == (0, 0, 0)


def test_what_can_never_be_admitted_is_not_told_to_wait() -> None:
    admission = Admission(max_queued_requests=2, max_queued_tokens=100)
    with pytest.raises(InvalidRequest) as caught:
        admission.admit(1, 5, 4, IDLE)
    assert caught.value.param == "n"
    with pytest.raises(InvalidRequest) as caught:
        admission.admit(7, 1, 4, IDLE)
    assert caught.value.param == "prompt"


def test_tokens_are_bounded_but_one_prompt_may_always_wait() -> None:
    admission = Admission(max_queued_requests=10, max_queued_tokens=100)
    [large], [small] = admission.admit(1, 1, 4, IDLE), admission.admit(1, 1, 4, IDLE)
    admission.charge_tokens([large], [500], IDLE)
    with pytest.raises(Overloaded) as caught:
        admission.charge_tokens([small], [1], BUSY)
    assert caught.value.retry_after_s == 1.0
    large.start()
    admission.charge_tokens([small], [1], IDLE)


def test_retry_after_follows_the_speed_of_the_engine() -> None:
    assert retry_after_s("full", 5000, BUSY) == 10.0
    assert retry_after_s("full", 10**9, BUSY) == 60.0
    assert retry_after_s("full", 10, BUSY) == 1.0
    assert retry_after_s("full", 10**9, IDLE) == 1.0
    assert retry_after_s("loading") == 5.0


async def hold(engine: FakeEngine, request: NewRequest) -> AsyncIterator[Output]:
    """Waits for a seat for ever."""
    await engine.hold()
    yield Output(request.request_id, 0, [])


def body(prompt: str = "hi", **fields: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": prompt} | fields


async def test_a_full_queue_is_refused_before_tokenising() -> None:
    engine = FakeEngine(hold, max_num_seqs=2)
    async with running(engine, max_queued_requests=1) as server:
        waiting = [asyncio.create_task(server.post("/v1/completions", body())) for _ in range(3)]
        await engine.wait_until(lambda engine: len(engine.requests) == 3)
        engine.stats = EngineStats(time_s=0.0, last_step_s=1.0, last_step_tokens=1)
        num_encoded = server.text.num_encoded
        for path, request in (("/v1/completions", body()), ("/v1/chat/completions", {"model": "m", "messages": [
            {"role": "user", "content": "x"}]})):  # fmt: skip
            async with server.http.post(path, json=request) as response:
                assert response.status == 429
                assert response.headers["Retry-After"] == "6"
                assert (await response.json())["error"]["code"] == "queue_full"
        assert server.text.num_encoded == num_encoded
        waiting.pop().cancel()
        await engine.wait_until(lambda engine: len(engine.aborted) == 1)
        waiting.append(asyncio.create_task(server.post("/v1/completions", body())))
        await engine.wait_until(lambda engine: len(engine.requests) == 4)
        engine.die("end of test")
        await asyncio.gather(*waiting, return_exceptions=True)
        assert server.front.admission.num_seqs == 0
        assert (await server.metrics())['tandem_requests_refused_total{reason="queue_full"}'] == 2


async def test_waiting_tokens_are_bounded() -> None:
    engine = FakeEngine(hold)
    async with running(engine, max_queued_tokens=100) as server:
        waiting = asyncio.create_task(server.post("/v1/completions", body("a" * 90)))
        await engine.wait_until(lambda engine: len(engine.requests) == 1)
        status, answer = await server.post("/v1/completions", body("a" * 11))
        assert (status, answer["error"]["type"]) == (429, "rate_limit_error")
        assert server.front.admission.num_seqs == 1, "the refused request gave its place back"
        waiting.cancel()
        await engine.wait_until(lambda engine: len(engine.aborted) == 1)


async def test_started_requests_make_room_for_tokens() -> None:
    async def start_then_hold(engine: FakeEngine, request: NewRequest) -> AsyncIterator[Output]:
        yield Output(request.request_id, 0, [97])
        await engine.hold()

    engine = FakeEngine(start_then_hold)
    async with running(engine, max_queued_tokens=100) as server:
        first = await server.http.post("/v1/completions", json=body("a" * 90, stream=True))
        await first.content.readany()
        second = await server.http.post("/v1/completions", json=body("a" * 90, stream=True))
        assert second.status == 200
        first.close()
        second.close()
        await engine.wait_until(lambda engine: len(engine.aborted) == 2)
