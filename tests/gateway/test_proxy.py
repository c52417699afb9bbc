"""A request's way through the real gateway, over real sockets, with engines that do what engines do."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any, Final

import aiohttp
import openai
import pytest

from tandem.config.gateway_admission import AdmissionConfig, QueueLimits, WaitingRoom
from tandem.config.gateway_upstream import UpstreamConfig
from tandem.core.errors import Overloaded
from tandem.gateway.context import Caller
from tests.gateway.fakes import Call, FakeEngine, FakeLimits, Served, completion, engines, serving, until, well

CHAT: Final = "/v1/chat/completions"
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = BODY | {"stream": True}
FAST = UpstreamConfig(first_token_timeout_s=0.4, plain_timeout_s=0.4, idle_timeout_s=0.4, connect_timeout_s=0.4)


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
        yield session


async def ask(http: aiohttp.ClientSession, served: Served, body: dict[str, Any], **headers: str) -> tuple[int, bytes]:
    async with http.post(served.url + CHAT, json=body, headers=headers) as response:
        return response.status, await response.read()


def events(body: bytes) -> list[Any]:
    """Data of each event; comments left out."""
    data = [part[6:] for part in body.split(b"\n\n") if part.startswith(b"data: ")]
    return [part.decode() if part == b"[DONE]" else json.loads(part) for part in data]


def text_of(body: bytes) -> str:
    return "".join(
        event["choices"][0]["delta"].get("content") or ""
        for event in events(body)
        if event != "[DONE]" and event.get("choices")
    )


async def is_left_clean(served: Served, *running: FakeEngine) -> None:
    """Nothing runs anywhere, and nothing is counted as if it did."""
    for engine in running:
        await engine.idle()
    assert all(replica.in_flight == 0 and replica.in_flight_prompt_tokens == 0 for replica in served.replicas)
    assert served.limits.reserved == 0
    assert served.gateway.proxy.watch.num_open == 0


# The ordinary way.


async def test_a_plain_answer_passes_unchanged(http: aiohttp.ClientSession) -> None:
    async with engines(well) as (engine,), serving(engine) as served:
        status, body = await ask(http, served, BODY)
        assert (status, json.loads(body)) == (200, completion())
        [row] = served.ledger.rows
        assert (row.status, row.prompt_tokens, row.output_tokens, row.pool) == ("ok", 20, 3, "p")
        await is_left_clean(served, engine)


async def test_a_stream_passes_without_the_usage_that_only_we_asked_for(http: aiohttp.ClientSession) -> None:
    async with engines(well) as (engine,), serving(engine) as served:
        _, body = await ask(http, served, STREAM)
        assert text_of(body) == "one two three"
        assert b'"usage"' not in body
        assert engine.calls[0].json["stream_options"] == {"include_usage": True}
        [row] = await served.ledger.written(1)
        assert (row.prompt_tokens, row.output_tokens, row.status) == (20, 3, "ok")


async def test_a_client_that_asks_for_usage_gets_it(http: aiohttp.ClientSession) -> None:
    async with engines(well) as (engine,), serving(engine) as served:
        _, body = await ask(http, served, STREAM | {"stream_options": {"include_usage": True}})
        assert events(body)[-2]["usage"]["prompt_tokens"] == 20
        assert events(body)[-1] == "[DONE]"


async def test_the_official_client_reads_plain_answers_and_streams() -> None:
    async with engines(well) as (engine,), serving(engine) as served:
        client = openai.AsyncOpenAI(base_url=served.url + "/v1", api_key="unused", max_retries=0)
        answer = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
        assert answer.choices[0].message.content == "hello"
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert "".join(pieces) == "one two three"
        assert [model.id async for model in client.models.list()] == ["m"]
        await client.close()


async def test_an_alias_hides_the_replicas_own_name(http: aiohttp.ClientSession) -> None:
    async with engines(well) as (engine,), serving(engine, pool={"aliases": ("alias",)}) as served:
        _, body = await ask(http, served, BODY | {"model": "alias"})
        assert json.loads(body)["model"] == "alias"
        _, body = await ask(http, served, STREAM | {"model": "alias"})
        assert {event["model"] for event in events(body)[:-1]} == {"alias"}
        assert [call.json["model"] for call in engine.calls] == ["m", "m"]


async def test_answers_say_who_served_them(http: aiohttp.ClientSession) -> None:
    async with engines(well) as (engine,), serving(engine) as served:
        for body in (BODY | {"service_tier": "flex"}, STREAM | {"service_tier": "flex"}):
            async with http.post(served.url + CHAT, json=body, headers={"X-Request-Id": "mine"}) as response:
                headers = response.headers
                assert headers["X-Request-Id"] == "mine"
                assert headers["X-Tandem-Pool"] == "p"
                assert headers["X-Tandem-Replica"] == served.replicas[0].id
                assert headers["X-Tandem-Class"] == "batch"
                assert headers["X-Tandem-Engine"] == "openai"
                assert headers["X-Tandem-Request-Id"] in {row.request_id for row in await served.ledger.written(1)} | {
                    headers["X-Tandem-Request-Id"]
                }
                await response.read()


# Before the first content: another replica, or a real status.


async def refuses(call: Call) -> None:
    call.reset()


async def closes_after_the_headers(call: Call) -> None:
    call.head()
    await call.writer.drain()
    call.close()


async def dies_after_the_role(call: Call) -> None:
    call.head()
    call.delta("", role="assistant")
    await call.writer.drain()
    call.close()


async def is_overloaded(call: Call) -> None:
    call.answer({"error": {"message": "busy", "type": "x", "code": None, "param": None}}, 503, Retry_After="7")


async def has_an_error_in_200(call: Call) -> None:
    error = {"error": {"message": "boom", "type": "server_error", "code": 500}}
    if call.json.get("stream"):
        call.head()
        call.event(error)
        call.event("[DONE]")
        call.end()
    else:
        call.answer(error)


async def sends_half_a_line(call: Call) -> None:
    call.head()
    call.chunk(b'data: {"choices":[{"delta":{"cont')
    await call.silence()


async def is_silent(call: Call) -> None:
    await call.silence()


async def is_no_http(call: Call) -> None:
    call.raw(b"220 smtp ready\r\n\r\n")


async def answers_empty(call: Call) -> None:
    call.answer(b"")


BROKEN = [
    refuses, closes_after_the_headers, dies_after_the_role, is_overloaded, has_an_error_in_200, sends_half_a_line,
    is_silent, is_no_http, answers_empty,
]  # fmt: skip


@pytest.mark.parametrize("script", BROKEN, ids=lambda script: script.__name__)
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_a_failure_before_the_first_content_goes_to_another(
    http: aiohttp.ClientSession, script: Any, stream: bool
) -> None:
    """gw-03: with a healthy replica beside it, the answer comes wholly from that one."""
    async with engines(script, well) as (bad, good), serving(bad, good, upstream=FAST) as served:
        for _ in range(2):  # round robin: each is first once
            status, body = await ask(http, served, BODY | {"stream": stream})
            assert status == 200
            assert (text_of(body) == "one two three") if stream else (json.loads(body) == completion())
        assert bad.calls, "it was never asked"
        rows = await served.ledger.written(2)
        assert [(row.status, row.replica) for row in rows] == [("ok", served.replicas[1].id)] * 2
        await is_left_clean(served, bad, good)


@pytest.mark.parametrize("script", BROKEN, ids=lambda script: script.__name__)
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_a_failure_with_nobody_else_is_a_status_and_never_an_empty_200(
    http: aiohttp.ClientSession, script: Any, stream: bool
) -> None:
    """gw-03: without another replica."""
    async with engines(script) as (bad,), serving(bad, upstream=FAST) as served:
        async with http.post(served.url + CHAT, json=BODY | {"stream": stream}) as response:
            assert response.status in (502, 503, 504)
            error = (await response.json())["error"]
            assert set(error) == {"message", "type", "param", "code"}
            if script is is_overloaded:
                assert (response.status, response.headers["Retry-After"]) == (503, "7")
            if script is is_silent:
                assert response.status == 504
        [row] = await served.ledger.written(1)
        assert (row.status, row.output_tokens) == ("failed", 0)
        await is_left_clean(served, bad)


async def test_a_replica_that_is_not_there_costs_only_a_try(http: aiohttp.ClientSession) -> None:
    """gw-03 (a): connection refused."""
    async with engines(well, well) as (gone, good), serving(gone, good, upstream=FAST) as served:
        await gone.stop()
        for _ in range(2):
            status, _ = await ask(http, served, BODY)
            assert status == 200


async def test_a_bad_request_is_not_tried_again(http: aiohttp.ClientSession) -> None:
    """gw-03 (f): the engine's own 400, with its own body."""
    told = {"error": {"message": "no such thing", "type": "invalid_request_error", "param": "x", "code": None}}

    async def refuses_it(call: Call) -> None:
        call.answer(told, 400)

    async with engines(refuses_it, refuses_it) as two, serving(*two) as served:
        status, body = await ask(http, served, STREAM)
        assert (status, json.loads(body)) == (400, told)
        assert sum(len(engine.calls) for engine in two) == 1
        assert all(replica.failures_in_row == 0 for replica in served.replicas)


async def test_429_stays_429_and_keeps_its_retry_after(http: aiohttp.ClientSession) -> None:
    async def is_full(call: Call) -> None:
        call.answer({"error": {"message": "full", "type": "x", "code": "queue_full"}}, 429, Retry_After="9")

    async with engines(is_full, is_full) as two, serving(*two) as served:
        async with http.post(served.url + CHAT, json=BODY) as response:
            assert (response.status, response.headers["Retry-After"]) == (429, "9")
        assert [len(engine.calls) for engine in two] == [1, 1]


async def test_retries_have_a_budget(http: aiohttp.ClientSession) -> None:
    config = UpstreamConfig(retry_ratio=0.0, retry_burst=1)
    async with engines(refuses, refuses) as two, serving(*two, upstream=config) as served:
        for _ in range(4):
            assert (await ask(http, served, BODY))[0] == 502
        assert sum(len(engine.calls) for engine in two) == 5


async def test_a_kept_connection_that_was_closed_is_no_failure(http: aiohttp.ClientSession) -> None:
    """uvicorn closes after five idle seconds: the next request must not notice."""
    async with engines(well) as (engine,), serving(engine) as served:
        assert (await ask(http, served, BODY))[0] == 200
        for writer in list(engine._writers):
            writer.close()
        assert (await ask(http, served, BODY))[0] == 200
        assert served.replicas[0].failures_in_row == 0


# After it: an honest end.


async def closes(call: Call) -> None:
    call.close()


async def resets(call: Call) -> None:
    call.reset()


async def says_error(call: Call) -> None:
    call.event({"error": {"message": "boom", "code": 500}})
    call.event("[DONE]")
    call.end()


async def stalls(call: Call) -> None:
    await call.silence()


async def ends_too_soon(call: Call) -> None:
    call.end()


async def pings_only(call: Call) -> None:
    while not call.gone.is_set():
        call.chunk(b": ping\n\n")
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    "how", [closes, resets, says_error, stalls, ends_too_soon, pings_only], ids=lambda how: how.__name__
)
async def test_a_stream_that_breaks_ends_with_an_error_event(http: aiohttp.ClientSession, how: Any) -> None:
    """gw-02: the three chunks, one error event, the end; no [DONE], no invented finish, no second start."""

    async def breaks(call: Call) -> None:
        call.head()
        for piece in "abc":
            call.delta(piece)
        await call.writer.drain()
        await how(call)

    async with engines(breaks, breaks) as two, serving(*two, upstream=FAST) as served:
        status, body = await ask(http, served, STREAM)
        assert status == 200
        assert text_of(body) == "abc"
        *_, last = events(body)
        assert last["error"]["message"]
        assert last["error"]["type"]
        assert b'finish_reason":"stop' not in body
        assert sum(len(engine.calls) for engine in two) == 1
        [row] = await served.ledger.written(1)
        assert (row.status, row.output_tokens, row.is_estimated) == ("failed", 3, True)
        assert sum(replica.failures_in_row for replica in served.replicas) == 1
        await is_left_clean(served, *two)


async def test_a_stream_may_end_without_done_if_it_is_finished(http: aiohttp.ClientSession) -> None:
    async def ends(call: Call) -> None:
        call.head()
        call.delta("a")
        call.delta(finish="stop")
        call.usage()
        call.end()

    async with engines(ends) as (engine,), serving(engine) as served:
        _, body = await ask(http, served, STREAM)
        assert b"error" not in body
        assert (await served.ledger.written(1))[0].status == "ok"


# Cancel, in all three windows.


async def after_some(call: Call) -> None:
    call.head()
    call.delta("a")
    await call.silence()


@pytest.mark.parametrize(
    ("script", "stream", "output_tokens"),
    [(is_silent, False, 0), (is_silent, True, 0), (after_some, True, 1)],
    ids=["plain", "before the first token", "streaming"],
)
async def test_a_client_that_leaves_ends_the_request_at_the_engine(
    http: aiohttp.ClientSession, script: Any, stream: bool, output_tokens: int
) -> None:
    """ld-01: one row, aborted, with what was produced; the engine runs nothing within a second."""
    async with engines(script) as (engine,), serving(engine) as served:
        async with aiohttp.ClientSession() as session:
            asking = asyncio.ensure_future(session.post(served.url + CHAT, json=BODY | {"stream": stream}))
            await engine.has_arrived()
            if output_tokens:
                response = await asking
                await response.content.readany()
                response.close()
            else:
                asking.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await asking
        await asyncio.wait_for(engine.idle(), 1.0)
        [row] = await served.ledger.written(1)
        assert (row.status, row.output_tokens) == ("aborted", output_tokens)
        assert row.prompt_tokens > 0
        await is_left_clean(served, engine)


async def test_a_client_that_leaves_the_waiting_room_leaves_nothing(http: aiohttp.ClientSession) -> None:
    async with engines(well) as (engine,), serving(engine) as served:
        served.replicas[0].state = "down"
        asking = asyncio.ensure_future(ask(http, served, BODY))
        await waits(served, 1)
        asking.cancel()
        [row] = await served.ledger.written(1)
        assert (row.status, row.prompt_tokens, row.replica) == ("aborted", 0, "-")
        assert served.admission.num_waiting() == 0
        assert engine.calls == []
        await is_left_clean(served, engine)


async def waits(served: Served, number: int) -> None:
    await until(lambda: served.admission.num_waiting() == number)


async def test_twenty_streams_left_early_give_everything_back(http: aiohttp.ClientSession) -> None:
    """ld-01: reserved is 0 again, one row each."""
    async with engines(after_some) as (engine,), serving(engine) as served:
        async with aiohttp.ClientSession() as session:
            responses = await asyncio.gather(*(session.post(served.url + CHAT, json=STREAM) for _ in range(20)))
            for response in responses:
                response.close()
        rows = await served.ledger.written(20)
        assert [row.status for row in rows] == ["aborted"] * 20
        assert len({row.request_id for row in rows}) == 20
        await is_left_clean(served, engine)


# Waiting.


async def test_who_waits_while_no_replica_is_up_is_served_when_one_comes(http: aiohttp.ClientSession) -> None:
    async with engines(well) as (engine,), serving(engine) as served:
        served.replicas[0].state = "down"
        asking = [asyncio.ensure_future(ask(http, served, BODY)) for _ in range(20)]
        await waits(served, 20)
        served.replicas[0].state = "up"
        served.admission.notify()
        assert [status for status, _ in await asyncio.gather(*asking)] == [200] * 20


async def test_a_full_house_answers_429_and_nothing_reaches_the_engine(http: aiohttp.ClientSession) -> None:
    limits = QueueLimits(max_requests=2)
    config = AdmissionConfig(all_full=WaitingRoom(interactive=limits))
    async with (
        engines(is_silent) as (engine,),
        serving(engine, admission=config, pool={"max_concurrency": 1}) as served,
    ):
        asking = [asyncio.ensure_future(ask(http, served, BODY)) for _ in range(3)]
        await waits(served, 2)
        async with http.post(served.url + CHAT, json=BODY) as response:
            assert response.status == 429
            assert int(response.headers["Retry-After"]) >= 1
        engine.script = well
        await engine.stop()
        await engine.start()
        assert len(await asyncio.gather(*asking)) == 3


async def test_a_key_over_its_limit_is_refused_before_anything_is_sent(http: aiohttp.ClientSession) -> None:
    limits = FakeLimits(refusal=Overloaded("over the limit", retry_after_s=3))
    async with engines(well) as (engine,), serving(engine, limits=limits) as served:
        status, _ = await ask(http, served, BODY)
        assert (status, engine.calls) == (429, [])
        assert [row.status for row in served.ledger.rows] == ["refused"]


async def test_long_waits_are_pinged_and_then_an_error_is_an_event(http: aiohttp.ClientSession) -> None:
    config = UpstreamConfig(ping_after_s=0.1, ping_every_s=0.05, first_token_timeout_s=0.5)
    async with engines(is_silent) as (engine,), serving(engine, upstream=config) as served:
        status, body = await ask(http, served, STREAM)
        assert status == 200
        assert body.count(b": ping\n\n") >= 2
        assert [list(event) for event in events(body)] == [["error"]]


async def test_pings_dont_spoil_the_stream_that_follows(http: aiohttp.ClientSession) -> None:
    async def is_slow(call: Call) -> None:
        await asyncio.sleep(0.3)
        await well(call)

    config = UpstreamConfig(ping_after_s=0.1, ping_every_s=0.05)
    async with engines(is_slow) as (engine,), serving(engine, upstream=config) as served:
        _, body = await ask(http, served, STREAM)
        assert body.startswith(b": ping\n\n")
        assert text_of(body) == "one two three"
        assert events(body)[-1] == "[DONE]"


async def test_a_hedge_wins_and_the_slow_one_is_cancelled(http: aiohttp.ClientSession) -> None:
    config = UpstreamConfig(hedge_after_s=0.05)
    async with engines(is_silent, well) as (slow, quick), serving(slow, quick, upstream=config) as served:
        for _ in range(2):
            status, body = await ask(http, served, STREAM)
            assert (status, text_of(body)) == (200, "one two three")
        assert (await served.ledger.written(2))[0].replica == served.replicas[1].id
        await is_left_clean(served, slow, quick)


async def test_one_hung_replica_does_not_hold_up_the_others(http: aiohttp.ClientSession) -> None:
    """gw-07: 20 requests, 5 at a time, one of two replicas accepts and never answers."""
    config = UpstreamConfig(first_token_timeout_s=0.3, plain_timeout_s=0.3, retry_burst=100)
    async with engines(is_silent, well) as (hung, good), serving(hung, good, upstream=config) as served:
        for _ in range(4):
            async with asyncio.timeout(3):
                answers = await asyncio.gather(*(ask(http, served, BODY) for _ in range(5)))
            assert [status for status, _ in answers] == [200] * 5
        assert (await http.get(served.url + "/v1/models")).status == 200
        await is_left_clean(served, hung, good)


async def test_a_replica_killed_while_requests_wait_for_their_first_token(http: aiohttp.ClientSession) -> None:
    """Nothing lost, nothing doubled: all are answered by the other, once."""
    async with engines(is_silent, well) as (killed, good), serving(killed, good) as served:
        asking = [asyncio.ensure_future(ask(http, served, BODY)) for _ in range(10)]
        await killed.has_arrived()
        await until(lambda: len(killed.calls) >= 5)
        await killed.stop()
        assert [status for status, _ in await asyncio.gather(*asking)] == [200] * 10
        rows = await served.ledger.written(10)
        assert len({row.request_id for row in rows}) == 10
        await is_left_clean(served, good)


async def test_a_slow_reader_makes_the_engine_wait_and_loses_nothing(http: aiohttp.ClientSession) -> None:
    """Back-pressure: what the gateway holds is bounded, whatever the engine sends."""
    sent, count = [0], 400
    piece = "x" * 50_000

    async def floods(call: Call) -> None:
        call.head()
        for _ in range(count):
            call.delta(piece)
            await call.writer.drain()
            sent[0] += 1
        call.delta(finish="stop")
        call.event("[DONE]")
        call.end()

    config = UpstreamConfig(client_buffer_kib=64)
    async with engines(floods) as (engine,), serving(engine, upstream=config) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(served.url.rsplit(":", 1)[1]), limit=1 << 14)
        body = json.dumps(STREAM).encode()
        writer.write(b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (CHAT.encode(), len(body), body))
        await engine.has_arrived()
        before = -1
        while before != sent[0]:
            before = sent[0]
            await asyncio.sleep(0.1)
        assert sent[0] < count, "the engine could send all of it to somebody who reads nothing"
        got = b""
        while not got.endswith(b"0\r\n\r\n"):
            got += await reader.read(1 << 20)
        assert got.count(piece.encode()) == count or got.count(b'"content"') == count
        writer.close()
        await is_left_clean(served, engine)


async def test_five_thousand_at_once(http: aiohttp.ClientSession) -> None:
    """All are answered: 200, or 429 with Retry-After where the room is full. No 500, nothing left behind."""
    config = AdmissionConfig(all_full=WaitingRoom(interactive=QueueLimits(max_requests=1000)))
    async with engines(well) as (engine,), serving(engine, admission=config, pool={"max_concurrency": 64}) as served:
        body, everyday = json.dumps(BODY).encode(), Caller(forced_class="interactive")
        answers = await asyncio.gather(*(served.gateway.complete(CHAT, body, everyday) for _ in range(5000)))
        statuses = {status: sum(answer.status == status for answer in answers) for status in (200, 429)}
        assert sum(statuses.values()) == 5000
        assert statuses[200] >= 1064
        assert len({row.request_id for row in served.ledger.rows}) == 5000
        await is_left_clean(served, engine)
