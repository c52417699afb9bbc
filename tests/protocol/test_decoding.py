"""What is wrong with a request is said with the field's name, before anything else happens."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tandem.core.errors import InvalidRequest
from tandem.protocol.chat import ChatCompletionRequest
from tandem.protocol.decoding import decode_chat, decode_completion, decode_detokenize, decode_tokenize

USER = {"role": "user", "content": "hi"}


def chat(**fields: Any) -> ChatCompletionRequest:
    return decode_chat(json.dumps({"model": "m", "messages": [USER]} | fields).encode())


def refused_chat(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        chat(**fields)
    return caught.value


def refused_body(body: bytes) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        decode_chat(body)
    return caught.value


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": 5}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": 5, "content": "x"}]}, "messages[0].role"),
        ({"messages": [USER, {"role": "king", "content": "x"}]}, "messages[1].role"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": {"a": 1}}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"n": 1.5}, "n"),
        ({"stop": [1]}, "stop[0]"),
        ({"logit_bias": {"5": "x"}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"stream_options": {"include_usage": "yes"}, "stream": True}, "stream_options.include_usage"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"service_tier": "gold"}, "service_tier"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"cache_salt": 5}, "cache_salt"),
        ({"priority": 1 << 40}, "priority"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"model": None}, "model"),
    ],
)
def test_wrong_values_name_their_field(fields: dict[str, Any], param: str) -> None:
    error = refused_chat(**fields)
    assert error.status == 400
    assert error.param == param
    assert error.message.endswith(".")
    assert "`" not in error.message, "msgspec's own wording came through"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
        ({"chat_template": "{{ x }}"}, "chat_template"),
        ({"add_special_tokens": True}, "add_special_tokens"),
        ({"best_of": 2}, "best_of"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"guided_json": {"type": "object"}}, "guided_json"),
        ({"allowed_token_ids": [1]}, "allowed_token_ids"),
        ({"bad_words": ["x"]}, "bad_words"),
        ({"use_beam_search": True}, "use_beam_search"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0].type",
        ),
    ],
)
def test_features_that_are_not_there_are_refused_by_name(fields: dict[str, Any], param: str) -> None:
    assert refused_chat(**fields).param == param


def test_features_that_are_off_pass() -> None:
    chat(
        tools=[], tool_choice="none", response_format={"type": "text"}, best_of=1, modalities=["text"], audio=None,
        guided_json=None, use_beam_search=False, functions=[], temperature=None, stop=None, store=False,
    )  # fmt: skip
    chat(tools=[{"type": "function", "function": {"name": "f"}}], tool_choice="none")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe{}",
        b'{"model": "m", "messages": [{"role": "user", "content": "\xff"}]}',
        b'{"model": "m", "messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"\xff": 1, "model": "m", "messages": []}',
        b'{"model": "m"} tail',
        b'{"model": "m", "messages": ' + b"[" * 100_000,
        b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b', "model": "m", "messages": []}',
        b"[]",
        b"null",
        b'"text"',
    ],
)
def test_damaged_bodies_are_the_clients_fault(body: bytes) -> None:
    assert refused_body(body).status == 400


@pytest.mark.parametrize("constant", [b"NaN", b"Infinity", b"-Infinity"])
def test_a_number_json_does_not_have_names_its_field(constant: bytes) -> None:
    assert refused_body(b'{"model":"m","messages":[],"temperature":' + constant + b"}").param == "temperature"
    assert refused_body(b'{"model":"m","messages":[],"logit_bias":{"7":' + constant + b"}}").param == "logit_bias.7"
    assert refused_body(b'{"model":"m","temperature":1e999,"messages":[]}').param == "temperature"


def test_unknown_fields_are_collected_and_can_be_refused() -> None:
    body = {"model": "m", "messages": [USER], "frobnicate": 1, "store": True, "user": "u", "unknown_fields": ["x"]}
    assert set(decode_chat(json.dumps(body).encode()).unknown_fields) == {"frobnicate", "store", "unknown_fields"}
    with pytest.raises(InvalidRequest, match="frobnicate") as caught:
        decode_chat(json.dumps(body).encode(), strict_fields=True)
    assert caught.value.param == "frobnicate"


def test_content_parts_join_in_order() -> None:
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    assert chat(messages=[{"role": "user", "content": parts}]).messages[0].text() == "a b"


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", ["ab"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_prompt_forms(prompt: Any, expected: Any) -> None:
    assert decode_completion(json.dumps({"model": "m", "prompt": prompt}).encode()).prompts() == expected


@pytest.mark.parametrize("prompt", ["", [""], [], [[]], ["a", ""], [1, "a"], ["a", [1]], [[1], 2], [True], [1.5], None])
def test_prompts_that_cannot_be_continued(prompt: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_completion(json.dumps({"model": "m", "prompt": prompt}).encode())
    assert (caught.value.param or "").startswith("prompt")


def test_completions_refuse_a_suffix() -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_completion(b'{"model":"m","prompt":"a","suffix":"b"}')
    assert caught.value.param == "suffix"


def test_tokenize_takes_exactly_one_of_text_and_messages() -> None:
    assert decode_tokenize(b'{"prompt":""}').prompt == ""
    for body in (b"{}", b'{"prompt":"a","messages":[]}', b'{"messages":[]}'):
        with pytest.raises(InvalidRequest):
            decode_tokenize(body)
    with pytest.raises(InvalidRequest) as caught:
        decode_detokenize(b'{"tokens":["a"]}')
    assert caught.value.param == "tokens[0]"
