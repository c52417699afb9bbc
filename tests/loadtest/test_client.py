"""The client and the loop against a real server on a port: what is sent, what is recorded, how trouble looks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tandem.core.errors import ConfigError
from tandem.loadtest.bench import Run, measure, measure_once, reached
from tandem.loadtest.endpoint import parse_endpoint
from tandem.loadtest.errors import Unreachable, WrongTarget
from tandem.loadtest.record import Record
from tandem.loadtest.settings import LoadSettings, TargetSettings
from tandem.loadtest.statistics import mean
from tests.loadtest.fake_server import (
    END,
    STREAM_HEAD,
    FakeServer,
    Piece,
    Script,
    chunk,
    delta,
    event,
    finish,
    plain,
    streamed,
    words_of,
)

TINY: dict[str, Any] = {"input_len": "16", "output_len": "4", "warmup": 0}


async def bench(server: FakeServer, target: TargetSettings | None = None, **settings: Any) -> Run:
    return await measure([server.url], LoadSettings(**{**TINY, **settings}), target or TargetSettings())


async def test_a_closed_loop_never_has_more_open_than_asked_for() -> None:
    open_now, most = 0, 0

    def script(path: str, body: dict[str, Any]) -> Iterator[Piece]:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        yield 0.005
        yield from streamed()(path, body)
        open_now -= 1

    async with FakeServer(script) as server:
        run = await bench(server, num_requests=20, concurrency=3)
    assert [record.status for record in run.records] == ["ok"] * 20
    assert most == 3


async def test_an_open_loop_does_not_wait_for_answers() -> None:
    release = asyncio.Event()
    held = 0

    def script(path: str, body: dict[str, Any]) -> Iterator[Piece]:
        nonlocal held
        if body["max_tokens"] == 4:
            held += 1
            if held == 20:
                release.set()
            while not release.is_set():  # nobody is answered before all twenty are there
                yield 0.01
        yield from streamed()(path, body)

    async with FakeServer(script) as server:
        run = await bench(server, num_requests=20, rate=200.0)
    assert sum(record.is_ok for record in run.records) == 20
    assert all(record.lateness_s < 1.0 for record in run.records)
    assert [r.due_s for r in run.records] == sorted(r.due_s for r in run.records)


async def test_bodies_are_openais_with_what_was_asked_for() -> None:
    async with FakeServer(streamed()) as server:
        target = TargetSettings(extra_body='{"top_p": 0.5, "temperature": null}')
        await bench(server, target, num_requests=3)
    body = server.bodies[-1]
    assert (body["model"], body["stream"], body["max_tokens"], body["ignore_eos"]) == ("fake", True, 4, True)
    assert body["top_p"] == 0.5
    assert "temperature" not in body
    assert len({b["messages"][0]["content"] for b in server.bodies[-3:]}) == 3


async def test_prompts_get_the_wanted_length_from_usage_or_from_the_tokenizer() -> None:
    async with FakeServer(streamed()) as server:
        run = await bench(server, num_requests=2, input_len="100")
    assert [record.prompt_tokens for record in run.records] == [100, 100]
    async with FakeServer(streamed(), tokenizes=True) as server:  # two tokens a word, and seven more
        await bench(server, num_requests=1, input_len="107")
    assert words_of(server.bodies[-1]) == 50


async def test_a_session_repeats_the_servers_own_answers() -> None:
    async with FakeServer(streamed()) as server:
        run = await bench(server, num_requests=3, dataset="sessions", turns=3, concurrency=1)
    assert len(run.records) == 3
    last = server.bodies[-1]["messages"]
    assert [message["role"] for message in last] == ["user", "assistant"] * 2 + ["user"]
    assert last[1]["content"] == " word" * 4


async def test_several_endpoints_take_turns_each_with_its_key() -> None:
    async with FakeServer(streamed(), api_key="k1") as one, FakeServer(streamed(), api_key="k2") as two:
        settings = LoadSettings(num_requests=10, **TINY)
        run = await measure([one.url, two.url], settings, TargetSettings(model="fake"), api_keys=["k1", "k2"])
    assert sum(record.is_ok for record in run.records) == 10
    assert abs(len(one.bodies) - len(two.bodies)) <= 1


async def test_answers_without_a_stream_have_an_end_and_no_first_token() -> None:
    def script(path: str, body: dict[str, Any]) -> Iterator[Piece]:
        usage = {"prompt_tokens": words_of(body), "completion_tokens": 4}
        choice = {"message": {"role": "assistant", "content": "x"}, "finish_reason": "length"}
        yield plain(200, {"choices": [choice], "usage": usage})

    async with FakeServer(script) as server:
        run = await bench(server, TargetSettings(stream=False), num_requests=3)
    assert all(record.is_ok and record.ttft_s is None and record.output_tokens == 4 for record in run.records)


async def test_kept_connections_are_used_again_and_stale_ones_replaced() -> None:
    calls = 0

    def script(path: str, body: dict[str, Any]) -> Iterator[Piece]:
        nonlocal calls
        calls += 1
        if calls % 3 == 0:
            yield None  # closed without an answer, as a server does with a kept connection that it is tired of
        else:
            yield from streamed()(path, body)

    async with FakeServer(script) as server:
        run = await bench(server, num_requests=9, concurrency=1)
    assert [record.status for record in run.records] == ["ok"] * 9


def dying(after: int) -> Script:
    def script(path: str, body: dict[str, Any]) -> Iterator[Piece]:
        yield STREAM_HEAD + chunk(delta(content="x")) * after
        if body["max_tokens"] == 4:
            yield 0.001
            yield None
        yield chunk(finish(5, 2)) + END

    return script


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (dying(2), "the connection was closed in the middle of the answer"),
        (lambda p, b: iter([plain(503, {"error": {"message": "full"}})]), "HTTP 503: full"),
        (lambda p, b: iter([b"SMTP ready\r\n\r\n"]), "the answer is not HTTP"),
        (
            lambda p, b: iter([STREAM_HEAD, chunk(event({"error": {"message": "died"}})), END]),
            "an error in mid-stream: died",
        ),
    ],
)
async def test_a_server_that_fails_is_reported_in_its_own_words(script: Script, says: str) -> None:
    def only_later(path: str, body: dict[str, Any]) -> Iterator[Piece]:
        return script(path, body) if body["max_tokens"] == 4 else streamed()(path, body)

    async with FakeServer(only_later) as server:
        run = await bench(server, num_requests=4)
    assert [record.status for record in run.records] == ["error"] * 4
    assert all(record.problem.startswith(says) for record in run.records), run.records[0].problem


def endless(path: str, body: dict[str, Any]) -> Iterator[Piece]:
    if body["max_tokens"] != 4:
        yield from streamed()(path, body)
        return
    yield STREAM_HEAD
    while True:
        yield chunk(delta(content="x"))
        yield 0.01


def silent(path: str, body: dict[str, Any]) -> Iterator[Piece]:
    if body["max_tokens"] != 4:
        yield from streamed()(path, body)
        return
    yield STREAM_HEAD
    yield 60.0


@pytest.mark.parametrize(
    ("script", "settings", "status", "says"),
    [
        (endless, {"timeout": 0.2}, "error", "no end within 0.2 s (the stream had begun)"),
        (silent, {"silence": 0.2}, "error", "no byte for 0.2 s (nothing came)"),
        (endless, {"abort_after": 0.2}, "incomplete", "left by the client after 0.2 s"),
        (endless, {"duration": 0.05, "drain": 0.1}, "incomplete", ""),
    ],
)
async def test_no_answer_is_waited_for_for_ever(
    script: Script, settings: dict[str, Any], status: str, says: str
) -> None:
    async with FakeServer(script) as server:
        run = await bench(server, num_requests=2, **settings)
        async with asyncio.timeout(5):
            # And the server learns that nobody listens.
            while server.num_aborted < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert [(record.status, record.problem) for record in run.records] == [(status, says)] * 2


async def test_a_run_that_is_stopped_keeps_what_it_has() -> None:
    def script(path: str, body: dict[str, Any]) -> Iterator[Piece]:
        if len(server.bodies) == 8:
            stop.set()
        return streamed(first_s=0.0 if len(server.bodies) < 8 else 30.0)(path, body)

    stop = asyncio.Event()
    async with FakeServer(script) as server, reached([server.url], TargetSettings(ignore_eos=False)) as target:
        settings = LoadSettings(num_requests=1000, concurrency=1, **TINY)
        run = await measure_once(target, settings, stop=stop)
    assert run.is_partial
    statuses = [record.status for record in run.records]
    assert statuses[-1] == "incomplete"
    assert statuses[:-1] == ["ok"] * (len(statuses) - 1)
    assert len(statuses) > 1


async def test_warm_up_requests_are_not_counted() -> None:
    async with FakeServer(streamed()) as server:
        run = await bench(server, num_requests=3, warmup=5)
        assert len(run.records) == 3
    own = {body["messages"][0]["content"] for body in server.bodies[-3:]}
    warm = {body["messages"][0]["content"] for body in server.bodies[:-3]}
    assert not own & warm


async def test_nobody_there_is_said_before_anything_is_measured() -> None:
    with pytest.raises(Unreachable, match="nobody listens there"):
        await measure(["http://127.0.0.1:9"], LoadSettings(), TargetSettings())


async def test_a_wrong_model_or_key_is_said_before_anything_is_measured() -> None:
    async with FakeServer(streamed(), api_key="secret") as server:
        with pytest.raises(WrongTarget, match="wants an API key"):
            await measure([server.url], LoadSettings(), TargetSettings())
        with pytest.raises(WrongTarget, match="has no model 'other'; it has fake"):
            await measure([server.url], LoadSettings(), TargetSettings(model="other"), api_keys=["secret"])
    assert server.bodies == []


async def test_a_server_that_hangs_at_the_first_question_is_given_up() -> None:
    async with FakeServer(lambda p, b: iter([60.0])) as server:
        with pytest.raises(WrongTarget, match=r"no whole answer within 0\.1 s"):
            async with reached([server.url], TargetSettings(), patience_s=0.1):
                pass


async def test_an_endpoint_that_refuses_ignore_eos_is_asked_without() -> None:
    def script(path: str, body: dict[str, Any]) -> Iterator[Piece]:
        if "ignore_eos" in body:
            return iter([plain(400, {"error": {"message": "unknown field ignore_eos"}})])
        return streamed()(path, body)

    async with FakeServer(script) as server:
        run = await bench(server, num_requests=2)
    assert all(record.is_ok for record in run.records)
    assert "refuses ignore_eos" in run.notes[0]


async def test_an_endpoint_that_always_refuses_is_an_error_in_its_own_words() -> None:
    async with FakeServer(lambda p, b: iter([plain(500, {"error": {"message": "no GPU"}})])) as server:
        with pytest.raises(WrongTarget, match=r"a first request .* failed: HTTP 500: no GPU"):
            await bench(server)


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:y", "http://x?a=b", "http://u:p@x"])
def test_what_is_no_endpoint_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is no endpoint"):
        parse_endpoint(url)


def test_an_endpoint_may_end_in_v1_and_may_be_a_socket() -> None:
    assert parse_endpoint("http://h:1/v1/").base_path == ""
    assert parse_endpoint("http://h:1/base/v1").base_path == "/base"
    assert parse_endpoint("h:80").host == "h"
    assert parse_endpoint("unix:///run/t.sock").uds == "/run/t.sock"


def test_a_record_knows_its_own_lateness() -> None:
    assert Record(1.0, 1, 1, sent_s=1.5).lateness_s == 0.5
    assert Record(1.0, 1, 1, sent_s=0.9999).lateness_s == 0.0
    assert mean([1.0, 2.0]) == 1.5
