"""Completions: prompts times answers, echo, scoring, and the same texts streamed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tandem.engine.messages import NewRequest, Output
from tests.engine.front.fakes import FakeEngine, FakeText, say
from tests.engine.front.served import Running, running, stream_events


async def reversing(engine: FakeEngine, request: NewRequest) -> AsyncIterator[Output]:
    """Answer k says the prompt backwards, then k; longer prompts take longer."""
    prompt = bytes(request.prompt_token_ids)
    answers = [prompt[::-1] + str(k).encode() for k in range(request.sampling.n)]
    async for output in say(*answers)(engine, request):
        await asyncio.sleep(0)
        yield output


async def streamed_texts(server: Running, body: dict[str, Any]) -> dict[int, str]:
    texts: dict[int, str] = {}
    for event in await stream_events(server, "/v1/completions", body | {"stream": True}):
        for choice in event["choices"] if event != "[DONE]" else ():
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    return texts


async def test_prompts_times_n_in_order_in_both_forms() -> None:
    body = {"model": "m", "prompt": ["one two three", "AB"], "n": 2, "max_tokens": 50}
    expected = {0: "eerht owt eno0", 1: "eerht owt eno1", 2: "BA0", 3: "BA1"}
    engine = FakeEngine(reversing)
    async with running(engine) as server:
        answer = await server.openai.completions.create(**body)  # type: ignore[call-overload]
        streamed = await streamed_texts(server, body)
        usage = (await stream_events(
            server, "/v1/completions", body | {"stream": True, "stream_options": {"include_usage": True}}
        ))[-2]  # fmt: skip
    assert {choice.index: choice.text for choice in answer.choices} == streamed == expected
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    for counts in (answer.usage.model_dump(), usage["usage"]):
        assert counts["prompt_tokens"] == 13 + 2
        assert counts["completion_tokens"] == 2 * 15 + 2 * 4
        assert counts["total_tokens"] == counts["prompt_tokens"] + counts["completion_tokens"]
        assert counts["prompt_tokens_details"]["cached_tokens"] == 4
    assert usage["choices"] == []
    assert len({request.request_id for request in engine.requests}) == 6


@pytest.mark.parametrize("prompt", ["abc", ["abc"], [97, 98, 99], [[97, 98, 99]]])
async def test_forms_of_one_prompt(prompt: Any) -> None:
    async with running(FakeEngine(reversing)) as server:
        _, answer = await server.post("/v1/completions", {"model": "m", "prompt": prompt, "echo": True})
    assert [choice["text"] for choice in answer["choices"]] == ["abccba0"]


async def test_default_length_is_openais_and_is_cut_to_the_context() -> None:
    engine = FakeEngine(say(b"x" * 100), max_model_len=20)
    async with running(engine) as server:
        _, short = await server.post("/v1/completions", {"model": "m", "prompt": "a"})
        _, cut = await server.post("/v1/completions", {"model": "m", "prompt": "a" * 15})
    assert short["usage"]["completion_tokens"] == 16
    assert cut["usage"]["completion_tokens"] == 5
    assert cut["choices"][0]["finish_reason"] == "length"


async def test_scoring_a_prompt() -> None:
    engine = FakeEngine(say(b"never"))
    body = {"model": "m", "prompt": "abé", "max_tokens": 0, "echo": True, "logprobs": 2}
    async with running(engine, text=FakeText(adds_bos=True)) as server:
        status, answer = await server.post("/v1/completions", body)
        events = await stream_events(server, "/v1/completions", body | {"stream": True})
    assert status == 200
    assert engine.requests[0].sampling.max_tokens == 0
    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("abé", "length")
    assert choice["logprobs"] == {
        "tokens": ["<bos>", "a", "b", "bytes:\\xc3", "bytes:\\xa9"],
        "token_logprobs": [None, -0.5, -0.5, -0.5, -0.5],
        "top_logprobs": [
            None,
            {"a": -0.5, "b": -9999.0},
            {"b": -0.5, "c": -9999.0},
            {"bytes:\\xc3": -0.5, "bytes:\\xc4": -9999.0},
            {"bytes:\\xa9": -0.5, "bytes:\\xaa": -9999.0},
        ],
        "text_offset": [0, 0, 1, 2, 2],
    }
    assert events[0]["choices"][0]["logprobs"] == choice["logprobs"]
    assert events[0]["choices"][0]["text"] == "abé"
    assert answer["usage"]["completion_tokens"] == 0


async def test_scoring_several_prompts_several_times() -> None:
    body = {"model": "m", "prompt": ["ab", "c"], "n": 2, "max_tokens": 0, "echo": True, "logprobs": 0}
    async with running(FakeEngine(say(b""))) as server:
        _, answer = await server.post("/v1/completions", body)
    assert [choice["text"] for choice in answer["choices"]] == ["ab", "ab", "c", "c"]
    assert [choice["logprobs"]["tokens"] for choice in answer["choices"]] == [["a", "b"], ["a", "b"], ["c"], ["c"]]
    assert answer["choices"][0]["logprobs"]["top_logprobs"] == [None, {"b": -0.5}]
    assert answer["usage"]["tandem"]["engine_s"] == pytest.approx(0.8), "once a prompt, not once an answer"


async def test_generated_logprobs_go_on_where_the_prompt_ended() -> None:
    body = {"model": "m", "prompt": "ab", "max_tokens": 2, "echo": True, "logprobs": 1}
    async with running(FakeEngine(say(b"xyz"))) as server:
        _, answer = await server.post("/v1/completions", body)
        events = await stream_events(server, "/v1/completions", body | {"stream": True})
    logprobs = answer["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["a", "b", "x", "y"]
    assert logprobs["text_offset"] == [0, 1, 2, 3]
    for key in logprobs:
        assert [item for event in events[:-1] for item in event["choices"][0]["logprobs"][key]] == logprobs[key]


async def test_a_failing_prompt_ends_its_siblings() -> None:
    async def script(engine: FakeEngine, request: NewRequest) -> AsyncIterator[Output]:
        yield Output(request.request_id, 0, [97])
        if bytes(request.prompt_token_ids) == b"bad":
            await engine.wait_until(lambda engine: len(engine.requests) == 2)
            yield Output(request.request_id, 0, [], finish_reason="error", error="The sampler failed.")
        await engine.hold()

    engine = FakeEngine(script)
    async with running(engine) as server:
        status, answer = await server.post("/v1/completions", {"model": "m", "prompt": ["good", "bad"]})
        await engine.wait_until(lambda engine: len(engine.aborted) == 1)
    assert status == 500
    assert answer["error"]["message"] == "The sampler failed."
