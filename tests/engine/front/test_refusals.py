"""Every 4xx, in OpenAI's shape, before the engine has seen anything, while a neighbour's stream goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from tandem.config.server import ServerConfig
from tandem.engine.front import prepare
from tandem.engine.messages import NewRequest, Output
from tests.engine.front.fakes import VOCAB_SIZE, FakeEngine, failing, say
from tests.engine.front.served import running, stream_events, strict_json

USER = [{"role": "user", "content": "hi"}]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def completion(**fields: Any) -> tuple[str, dict[str, Any]]:
    return COMPLETIONS, {"model": "m", "prompt": "hi", "max_tokens": 2} | fields


def chat(**fields: Any) -> tuple[str, dict[str, Any]]:
    return CHAT, {"model": "m", "messages": USER} | fields


@pytest.mark.parametrize(
    ("request_", "param", "named"),
    [
        (completion(prompt=""), "prompt", ""),
        (completion(prompt=[""]), "prompt", ""),
        (completion(prompt=[]), "prompt", ""),
        (chat(messages=[]), "messages", ""),
        (completion(prompt=[[-1]]), "prompt", "-1"),
        (completion(prompt=[999999]), "prompt", "999999"),
        (completion(prompt=[10**30]), "prompt", "1" + "0" * 30),
        (completion(logit_bias={str(VOCAB_SIZE): 5}), "logit_bias", str(VOCAB_SIZE)),
        (completion(logit_bias={"abc": 5}), "logit_bias", "abc"),
        (completion(min_tokens=1, stop_token_ids=[VOCAB_SIZE, -3]), "stop_token_ids", "-3"),
        (completion(stop_token_ids=[VOCAB_SIZE]), "stop_token_ids", str(VOCAB_SIZE)),
        (completion(min_tokens=5), "min_tokens", "5"),
        (chat(messages=[{"role": "user", "content": "raise"}]), "messages", "template"),
        (chat(n=9), "n", "9"),
        (completion(prompt=["a"] * 2000), "prompt", "2000"),
        (chat(response_format={"type": "json_object"}), "response_format", "not supported"),
        (completion(top_k=1 << 64), "top_k", str(1 << 64)),
        (completion(min_tokens=1 << 64), "min_tokens", str(1 << 64)),
        (chat(max_completion_tokens=9_000), "max_completion_tokens", "9000"),
    ],
)
async def test_bad_requests_touch_nothing(request_: tuple[str, Any], param: str, named: str) -> None:
    async def forever(engine: FakeEngine, request: NewRequest) -> AsyncIterator[Output]:
        yield Output(request.request_id, 0, [97])
        await asyncio.wait_for(released.wait(), 5)
        yield Output(request.request_id, 0, [98], finish_reason="length")

    released = asyncio.Event()
    engine = FakeEngine(forever)
    async with running(engine) as server:
        neighbour = asyncio.create_task(stream_events(server, *completion(stream=True)))
        await engine.wait_until(lambda engine: len(engine.requests) == 1)
        status, answer = await server.post(*request_)
        released.set()
        events = await neighbour
        health, _ = await server.get("/health")
    error = answer["error"]
    assert (status, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert named in error["message"]
    assert len(engine.requests) == 1
    assert "".join(event["choices"][0]["text"] for event in events[:-1]) == "ab"
    assert health == 200


@pytest.mark.parametrize(
    ("request_", "param", "numbers"),
    [
        (completion(prompt="a" * 99), "max_tokens", ("99", "2", "100")),
        (completion(prompt="a" * 100), "prompt", ("100",)),
        (completion(prompt="a" * 5000, max_tokens=None), "prompt", ("5000", "100")),
        (chat(messages=[{"role": "user", "content": "a" * 94}]), "messages", ("100",)),
        (chat(max_completion_tokens=93), "max_completion_tokens", ("8", "93", "101", "100")),
    ],
)
async def test_what_does_not_fit_the_context(request_: tuple[str, Any], param: str, numbers: tuple[str, ...]) -> None:
    engine = FakeEngine(say(b"x" * 200), max_model_len=100)
    async with running(engine) as server:
        status, answer = await server.post(*request_)
    error = answer["error"]
    assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", param)
    assert all(number in error["message"] for number in numbers)
    assert engine.requests == []


async def test_what_just_fits_the_context() -> None:
    engine = FakeEngine(say(b"x" * 200), max_model_len=100)
    async with running(engine) as server:
        for request in (
            completion(prompt="a" * 98),
            chat(max_tokens=92),
            chat(),
            chat(messages=[{"role": "user", "content": "a" * 93}]),
            completion(prompt="a" * 100, max_tokens=0),
        ):
            status, answer = await server.post(*request)
            assert status == 200, answer
    assert [request.sampling.max_tokens for request in engine.requests] == [2, 92, 92, 1, 0]


async def test_an_unknown_model_is_a_404_of_openais() -> None:
    async with running(FakeEngine(say(b"a"))) as server:
        with pytest.raises(openai.NotFoundError) as caught:
            await server.openai.chat.completions.create(model="other", messages=USER)  # type: ignore[arg-type]
        for path, body in (completion(model="other"), ("/tokenize", {"model": "other", "prompt": "a"})):
            assert (await server.post(path, body))[0] == 404
    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"
    assert "'m'" in caught.value.message


@pytest.mark.parametrize("is_announced", [True, False])
async def test_too_large_a_body_is_a_413_in_openais_shape(is_announced: bool) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield b"x" * 1024

    engine = FakeEngine(say(b"a"))
    async with running(engine, config=ServerConfig(port=0, max_body_mib=1 / 64)) as server:
        data = b"x" * 65536 if is_announced else pieces()
        async with server.http.post(CHAT, data=data) as response:
            answer = strict_json(await response.text())
        assert response.status == 413
        assert answer["error"]["type"] == "invalid_request_error"
        assert (await server.post(*chat()))[0] == 200
    assert len(engine.requests) == 1


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nope", 404),
        ("POST", "/v1/nope", 404),
        ("GET", "/v1/models/other", 404),
        ("GET", CHAT, 405),
        ("DELETE", "/health", 405),
    ],
)
async def test_wrong_paths_and_methods(method: str, path: str, status: int) -> None:
    async with running(FakeEngine(say(b"a"))) as server, server.http.request(method, path) as response:
        assert response.status == status
        assert set(strict_json(await response.text())["error"]) == {"message", "type", "param", "code"}
        assert ("Allow" in response.headers) == (status == 405)


async def test_what_is_not_http_is_answered_in_json() -> None:
    async with running(FakeEngine(say(b"a"))) as server:
        host, port = server.address.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/models HTTP/1.1\r\nHost: x\r\nContent-Length: abc\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), 5)
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith((b"HTTP/1.1 400", b"HTTP/1.0 400"))
    assert json.loads(body)["error"]["type"] == "invalid_request_error"


async def test_strict_fields() -> None:
    async with running(FakeEngine(say(b"a")), config=ServerConfig(port=0, strict_fields=True)) as server:
        status, answer = await server.post(*chat(frobnicate=1))
    assert (status, answer["error"]["param"]) == (400, "frobnicate")


async def test_a_bug_is_a_500_that_says_nothing_of_itself() -> None:
    async with running(FakeEngine(failing(ValueError("secret detail")))) as server:
        status, answer = await server.post(*chat())
        assert (await server.get("/health"))[0] == 200
    assert status == 500
    assert answer["error"]["type"] == "server_error"
    assert "secret" not in json.dumps(answer)


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (completion(prompt="x" * 100_000), "prompt"),
        (chat(messages=[{"role": "user", "content": "x" * 100_000}]), "messages"),
        (("/tokenize", {"model": "m", "prompt": "x" * 100_000}), "prompt"),
    ],
)
async def test_a_text_that_can_not_fit_is_refused_before_it_is_tokenised(request_: tuple[str, Any], param: str) -> None:
    async with running(FakeEngine(say(b"x"))) as server:
        status, body = await server.post(*request_)
        assert (status, body["error"]["param"]) == (400, param)
        assert "100000 characters" in body["error"]["message"]
        assert server.text.num_encoded == 0


async def test_a_body_whose_encoding_is_a_lie_is_the_clients_error() -> None:
    async with running(FakeEngine(say(b"x"))) as server:
        status, body = await server.post(CHAT, b"this is not gzip", **{"Content-Encoding": "gzip"})
        assert (status, body["error"]["type"]) == (400, "invalid_request_error")


async def test_a_body_that_stops_coming_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "BODY_SILENCE_S", 0.05)
    async with running(FakeEngine(say(b"x"))) as server:

        async def body() -> AsyncIterator[bytes]:
            yield b"{"
            await asyncio.sleep(30)

        async with server.http.post(CHAT, data=body()) as response:
            assert response.status == 408
            assert "Nothing of the body came" in await response.text()


async def test_a_half_sent_request_does_not_hold_a_shutdown() -> None:
    async with running(FakeEngine(say(b"x"))) as server:
        sending = asyncio.Event()

        async def body() -> AsyncIterator[bytes]:
            yield b"{"
            sending.set()
            await asyncio.sleep(30)

        asking = asyncio.create_task(server.http.post(CHAT, data=body()).__aenter__())
        await sending.wait()
        await asyncio.wait_for(server.front.wait_idle(), 5)
        assert server.front.num_open == 0
        asking.cancel()


async def test_only_names_of_fields_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with running(FakeEngine(say(b"x"))) as server:
        await server.post(*completion(**{"my secret prompt": 1, "no_such_field": 1} | {f"f{i}": 1 for i in range(500)}))
    assert "no_such_field" in caplog.text
    assert "secret" not in caplog.text
    assert len(caplog.text) < 2000
