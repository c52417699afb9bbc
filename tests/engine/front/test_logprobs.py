"""Logprobs of chat answers and prompts: shapes, readable tokens, bytes that join, numbers that JSON has."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.engine.messages import TokenLogprobs
from tandem.protocol.logprobs import LOGPROB_FLOOR, clip
from tests.engine.front.fakes import FakeEngine, say
from tests.engine.front.served import running, stream_events

PATH = "/v1/chat/completions"


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "今天"}]} | fields


@pytest.mark.parametrize("top", [None, 0, 5])
async def test_bytes_join_to_the_content(top: int | None) -> None:
    async with running(FakeEngine(say("天’b".encode()))) as server:
        _, answer = await server.post(PATH, body(logprobs=True, top_logprobs=top))
        events = await stream_events(server, PATH, body(logprobs=True, top_logprobs=top, stream=True))
    choice = answer["choices"][0]
    content = choice["logprobs"]["content"]
    assert len(content) == answer["usage"]["completion_tokens"]
    assert b"".join(bytes(entry["bytes"]) for entry in content).decode() == choice["message"]["content"] == "天’b"
    assert [entry["token"] for entry in content] == [
        "\\xe5", "\\xa4", "\\xa9", "\\xe2", "\\x80", "\\x99", "b", "<eos>",
    ]  # fmt: skip
    for entry in content:
        assert len(entry["top_logprobs"]) == (top or 0)
        values = [alternative["logprob"] for alternative in entry["top_logprobs"]]
        assert values == sorted(values, reverse=True)
        assert all(LOGPROB_FLOOR <= value <= 0 for value in values)
        assert all(alternative["token"] for alternative in entry["top_logprobs"])
    streamed = [e for event in events[1:-1] for e in event["choices"][0]["logprobs"]["content"]]
    assert streamed == content


async def test_without_logprobs_there_are_none() -> None:
    async with running(FakeEngine(say(b"ab"))) as server:
        _, answer = await server.post(PATH, body())
    assert answer["choices"][0]["logprobs"] is None
    assert "prompt_logprobs" not in answer


async def test_prompt_logprobs_in_vllms_shape() -> None:
    async with running(FakeEngine(say(b"a"))) as server:
        _, chat = await server.post(PATH, body(prompt_logprobs=2))
        _, completion = await server.post(
            "/v1/completions", {"model": "m", "prompt": "abc", "n": 2, "prompt_logprobs": 1, "max_tokens": 1}
        )
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]
    assert chat["prompt_logprobs"][:2] == [
        None,
        {
            "115": {"logprob": -0.5, "rank": 1, "decoded_token": "s"},
            "116": {"logprob": LOGPROB_FLOOR, "rank": 2, "decoded_token": "t"},
        },
    ]
    for choice in completion["choices"]:
        assert choice["prompt_logprobs"] == [
            None,
            {"98": {"logprob": -0.5, "rank": 1, "decoded_token": "b"}},
            {"99": {"logprob": -0.5, "rank": 1, "decoded_token": "c"}},
        ]


async def test_minus_infinity_and_nan_never_reach_the_wire() -> None:
    async def script(engine: FakeEngine, request: Any) -> Any:
        async for output in say(b"ab")(engine, request):
            output.logprobs = [
                TokenLogprobs(token, float("-inf"), 1, [(97, float("nan")), (98, float("-inf"))])
                for token in output.token_ids
            ]
            yield output

    async with running(FakeEngine(script)) as server:
        _, answer = await server.post(PATH, body(logprobs=True, top_logprobs=2))
        _, other = await server.post("/v1/completions", {"model": "m", "prompt": "x", "logprobs": 2})
    entry = answer["choices"][0]["logprobs"]["content"][0]
    assert [entry["logprob"], *(top["logprob"] for top in entry["top_logprobs"])] == [LOGPROB_FLOOR] * 3
    assert other["choices"][0]["logprobs"]["token_logprobs"] == [LOGPROB_FLOOR] * 3


def test_clip() -> None:
    assert clip(-0.5) == -0.5
    assert clip(float("nan")) == clip(float("-inf")) == clip(-1e30) == LOGPROB_FLOOR
