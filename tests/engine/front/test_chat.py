"""Chat completions through a real server and OpenAI's own client."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tandem.engine.messages import NewRequest
from tests.engine.front.fakes import BOS, EOS, FakeEngine, FakeText, say
from tests.engine.front.served import Running, running, stream_events

USER: list[Any] = [{"role": "user", "content": "hi"}]
PROMPT = b"user:hi\n"


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": USER} | fields


async def streamed_text(server: Running, **fields: Any) -> dict[int, str]:
    """Choice → its deltas, joined."""
    texts: dict[int, str] = {}
    for event in await stream_events(server, "/v1/chat/completions", body(stream=True, **fields)):
        for choice in event["choices"] if event != "[DONE]" else ():
            texts[choice["index"]] = texts.get(choice["index"], "") + (choice["delta"].get("content") or "")
    return texts


async def test_a_plain_answer() -> None:
    engine = FakeEngine(say("héllo 😀".encode()))
    async with running(engine) as server:
        answer = await server.openai.chat.completions.create(model="m", messages=USER, seed=5, temperature=0.5)
    choice = answer.choices[0]
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "héllo 😀", "stop")
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (8, 12, 20)
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 2
    assert answer.usage.model_dump()["tandem"] == {
        "queue_s": 0.1, "prefill_s": 0.2, "decode_s": 0.3, "engine_s": 0.4, "kv_block_s": 0.5,
    }  # fmt: skip
    sent = engine.requests[0]
    assert bytes(sent.prompt_token_ids) == PROMPT
    assert (sent.sampling.seed, sent.sampling.temperature, sent.sampling.max_tokens) == (5, 0.5, 1000 - 8)
    assert answer.id == sent.request_id


async def test_a_stream_has_role_first_usage_last_and_whole_characters() -> None:
    async with running(FakeEngine(say("héllo 😀".encode()))) as server:
        events = await stream_events(
            server, "/v1/chat/completions", body(stream=True, stream_options={"include_usage": True})
        )
    assert events.pop() == "[DONE]"
    usage = events.pop()
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 12
    assert usage["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
    assert usage["usage"]["tandem"]["engine_s"] == 0.4
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(event["usage"] is None for event in events)
    assert [event["choices"][0]["delta"].get("content") for event in events[1:-1]] == list("héllo 😀")
    assert [event["choices"][0]["finish_reason"] for event in events] == [None] * (len(events) - 1) + ["stop"]
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert len({event["id"] for event in [*events, usage]}) == 1


async def test_a_stream_without_usage_has_none() -> None:
    async with running(FakeEngine(say(b"ab"))) as server:
        events = await stream_events(server, "/v1/chat/completions", body(stream=True))
        stats = await stream_events(
            server,
            "/v1/chat/completions",
            body(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}),
        )
    assert all("usage" not in event for event in events[:-1])
    counts = [event["usage"]["completion_tokens"] for event in stats[:-1]]
    assert counts == [1, 1, 2, 3, 3]
    assert stats[1]["usage"]["prompt_tokens"] == len(PROMPT)


@pytest.mark.parametrize("group", [1, 2, 3])
async def test_stop_strings_end_the_text_in_both_forms(group: int) -> None:
    engine = FakeEngine(say(b"one DEF two", group=group))
    async with running(engine) as server:
        answer = await server.openai.chat.completions.create(model="m", messages=USER, stop=["DEF"])
        texts = await streamed_text(server, stop=["DEF"])
        kept = await streamed_text(server, stop=["DEF"], include_stop_str_in_output=True)
        false_alarm = await streamed_text(server, stop=["two!"])
    assert answer.choices[0].message.content == texts[0] == "one "
    assert answer.choices[0].model_dump()["stop_reason"] == "DEF"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len("one DEF")
    assert kept[0] == "one DEF"
    assert false_alarm[0] == "one DEF two"
    assert engine.aborted == []


async def test_an_engine_that_misses_a_stop_string_is_stopped_by_the_front() -> None:
    async def deaf(engine: FakeEngine, request: NewRequest) -> Any:
        async for output in say(b"abSTOPcd")(engine, request_without_stop(request)):
            yield output

    engine = FakeEngine(deaf)
    async with running(engine) as server:
        status, answer = await server.post("/v1/chat/completions", body(stop="STOP", n=2))
        await engine.wait_until(lambda engine: len(engine.aborted) == 1)
    assert status == 200
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["ab", "ab"]
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["stop", "stop"]
    assert answer["usage"]["completion_tokens"] == 12
    assert "tandem" not in answer["usage"]


def request_without_stop(request: NewRequest) -> NewRequest:
    from dataclasses import replace

    import msgspec

    return msgspec.structs.replace(request, sampling=replace(request.sampling, stop=()))


async def test_stop_tokens_are_not_shown() -> None:
    async with running(FakeEngine(say(b"ab!cd"))) as server:
        texts = await streamed_text(server, stop_token_ids=[ord("!")])
        kept = await streamed_text(server, stop_token_ids=[ord("!")], include_stop_str_in_output=True)
        nothing = await server.post("/v1/chat/completions", body(stop_token_ids=[ord("a")]))
        hidden = await server.post("/v1/chat/completions", body(skip_special_tokens=False))
    assert texts[0] == "ab"
    assert kept[0] == "ab!"
    assert nothing[1]["choices"][0]["message"]["content"] == ""
    assert nothing[1]["choices"][0]["stop_reason"] == ord("a")
    assert hidden[1]["choices"][0]["message"]["content"] == "ab!cd"


async def test_max_tokens_in_the_middle_of_a_character_shows_one_replacement_at_the_end() -> None:
    async with running(FakeEngine(say("a😀".encode()))) as server:
        status, answer = await server.post("/v1/chat/completions", body(max_tokens=3))
        texts = await streamed_text(server, max_tokens=3)
    assert status == 200
    assert answer["choices"][0]["message"]["content"] == texts[0] == "a\ufffd"
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 3


async def test_several_answers() -> None:
    async with running(FakeEngine(say(b"first", b"2nd"))) as server:
        answer = await server.openai.chat.completions.create(model="m", messages=USER, n=2)
        texts = await streamed_text(server, n=2)
    assert [(c.index, c.message.content) for c in answer.choices] == [(0, "first"), (1, "2nd")]
    assert texts == {0: "first", 1: "2nd"}
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (8, 6 + 4)
    assert answer.usage.model_dump()["tandem"]["engine_s"] == pytest.approx(0.8)
    assert answer.usage.model_dump()["tandem"]["queue_s"] == pytest.approx(0.1)


async def test_two_clients_with_one_request_id_never_share_output() -> None:
    engine = FakeEngine(say(b"answer"))
    async with running(engine) as server:
        headers = {"X-Request-Id": "same"}
        answers = await asyncio.gather(
            *(server.post("/v1/chat/completions", body(), **headers) for _ in range(5)),
        )
    assert len({request.request_id for request in engine.requests}) == 5
    assert all("same" not in request.request_id for request in engine.requests)
    assert {answer["id"] for _, answer in answers} == {request.request_id for request in engine.requests}


async def test_request_ids_come_back() -> None:
    async with running(FakeEngine(say(b"a"))) as server:
        for given in ("mine-1", "bad\tid"):
            async with server.http.get("/version", headers={"X-Request-Id": given}) as response:
                returned = response.headers["X-Request-Id"]
            assert (returned == given) == (given == "mine-1")
        async with server.http.post(
            "/v1/chat/completions", json=body(stream=True), headers={"X-Request-Id": "s-1"}
        ) as r:
            assert r.headers["X-Request-Id"] == "s-1"
            await r.read()


async def test_class_priority_and_salt() -> None:
    engine = FakeEngine(say(b"a"))
    async with running(engine) as server:
        _, flex = await server.post("/v1/chat/completions", body(service_tier="flex", priority=3, cache_salt="alpha"))
        _, high = await server.post("/v1/chat/completions", body(service_tier="priority"))
        _, plain = await server.post("/v1/chat/completions", body())
        gateway = {"X-Tandem-Class": "batch", "X-Tandem-Priority": "-7", "X-Tandem-Cache-Salt": "tenant"}
        _, decided = await server.post("/v1/chat/completions", body(priority=3, cache_salt="alpha"), **gateway)
        status, wrong = await server.post("/v1/chat/completions", body(), **{"X-Tandem-Class": "urgent"})
    got = [(request.service_class, request.priority, request.cache_salt) for request in engine.requests]
    assert got == [("batch", 3, "alpha"), ("interactive", 0, None), ("interactive", 0, None), ("batch", -7, "tenant")]
    assert [answer["service_tier"] for answer in (flex, high, plain, decided)] == [
        "flex",
        "priority",
        "default",
        "flex",
    ]
    assert (status, wrong["error"]["param"]) == (400, "X-Tandem-Class")


async def test_seeds_are_filled_in_and_differ() -> None:
    engine = FakeEngine(say(b"a"))
    async with running(engine) as server:
        await server.post("/v1/chat/completions", body())
        await server.post("/v1/chat/completions", body())
    assert engine.requests[0].sampling.seed != engine.requests[1].sampling.seed
    again = FakeEngine(say(b"a"))
    for _ in range(2):
        async with running(again, seed=7) as server:
            await server.post("/v1/chat/completions", body())
    assert again.requests[0].sampling.seed == again.requests[1].sampling.seed


async def test_echo_goes_on_from_the_assistants_last_message() -> None:
    messages = [*USER, {"role": "assistant", "content": "He"}]
    async with running(FakeEngine(say(b"llo"))) as server:
        continued = {"messages": messages, "echo": True, "continue_final_message": True}
        _, answer = await server.post("/v1/chat/completions", body(**continued))
        texts = await streamed_text(server, **continued)
        _, unanswered = await server.post("/v1/chat/completions", body(echo=True))
    assert answer["choices"][0]["message"]["content"] == texts[0] == "Hello"
    assert unanswered["choices"][0]["message"]["content"] == "llo"


async def test_unknown_fields_warn_once(caplog: pytest.LogCaptureFixture) -> None:
    async with running(FakeEngine(say(b"a"))) as server:
        for _ in range(3):
            status, _ = await server.post("/v1/chat/completions", body(frobnicate=1))
            assert status == 200
    assert len([record for record in caplog.records if "frobnicate" in record.getMessage()]) == 1


async def test_nothing_a_client_wrote_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    async with running(FakeEngine(say(b"ANSWER"))) as server:
        await server.post("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "SECRET"}]})
        await server.post("/v1/chat/completions", b'{"model": "m", "SECRET')
        await server.post("/v1/chat/completions", body(stop=["SECRET" * 1000]))
    assert "SECRET" not in caplog.text
    assert "ANSWER" not in caplog.text
    assert "POST /v1/chat/completions 200" in caplog.text


async def test_control_tokens_in_a_raw_prompt_count() -> None:
    engine = FakeEngine(say(b"a"))
    async with running(engine, text=FakeText(adds_bos=True)) as server:
        await server.post("/v1/completions", {"model": "m", "prompt": "x<eos>"})
        await server.post("/v1/completions", {"model": "m", "prompt": "x", "add_special_tokens": False})
    assert [request.prompt_token_ids for request in engine.requests] == [[BOS, ord("x"), EOS], [ord("x")]]
