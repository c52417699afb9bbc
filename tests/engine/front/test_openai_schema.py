"""Our answers have the keys and types of OpenAI's published description."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.front.fakes import FakeEngine, say
from tests.engine.front.openapi import PATH, OpenApi
from tests.engine.front.served import running, stream_events, strict_json

pytestmark = pytest.mark.skipif(not PATH.exists(), reason=f"OpenAI's API description is not at {PATH}")
USER = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def api() -> OpenApi:
    return OpenApi()


@pytest.mark.parametrize("fields", [{}, {"n": 2, "logprobs": True, "top_logprobs": 2, "service_tier": "flex"}])
async def test_chat(api: OpenApi, fields: dict[str, Any]) -> None:
    body = {"model": "m", "messages": USER} | fields
    async with running(FakeEngine(say("aé".encode()))) as server:
        _, answer = await server.post("/v1/chat/completions", body)
        usage = {"stream": True, "stream_options": {"include_usage": True}}
        events = await stream_events(server, "/v1/chat/completions", body | usage)
    api.check(answer, "CreateChatCompletionResponse")
    for event in events[:-1]:
        api.check(event, "CreateChatCompletionStreamResponse")


@pytest.mark.parametrize("fields", [{}, {"prompt": ["a", "b"], "n": 2, "logprobs": 2}])
async def test_completions(api: OpenApi, fields: dict[str, Any]) -> None:
    body = {"model": "m", "prompt": "hi"} | fields
    async with running(FakeEngine(say("aé".encode()))) as server:
        _, answer = await server.post("/v1/completions", body)
        events = await stream_events(server, "/v1/completions", body | {"stream": True})
    api.check(answer, "CreateCompletionResponse")
    finishing = [event for event in events[:-1] if event["choices"][0]["finish_reason"]]
    assert finishing
    for event in finishing:  # the description leaves no room for a chunk that is not the last
        api.check(event, "CreateCompletionResponse")


async def test_models_and_errors(api: OpenApi) -> None:
    async with running(FakeEngine(say(b"a"))) as server:
        api.check(strict_json((await server.get("/v1/models"))[1]), "ListModelsResponse")
        api.check(strict_json((await server.get("/v1/models/m"))[1]), "Model")
        for status, path in [(400, "/v1/completions"), (404, "/nope"), (405, "/version")]:
            got, error = await server.post(path, {})
            assert got == status
            api.check(error, "ErrorResponse")


def test_the_reader_finds_what_is_wrong(api: OpenApi) -> None:
    for broken in (
        {"object": "model", "created": 1, "owned_by": "x"},
        {"id": 5, "object": "model", "created": 1, "owned_by": "x"},
        {"id": "m", "object": "engine", "created": 1, "owned_by": "x"},
    ):
        with pytest.raises(AssertionError):
            api.check(broken, "Model")
