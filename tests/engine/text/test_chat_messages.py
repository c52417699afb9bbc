"""Conversations in the one form that templates can be trusted with."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.core.errors import InvalidRequest
from tandem.engine.text.chat_messages import map_message, map_texts, normalize_messages


def call(arguments: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]}


def test_content_is_always_a_text() -> None:
    parts = [{"type": "text", "text": "and "}, {"type": "text", "text": "Rome?"}]
    given: list[dict[str, Any]] = [
        {"role": "user", "content": parts},
        {"role": "assistant"},
        {"role": "user", "content": None},
    ]
    assert [message["content"] for message in normalize_messages(given)] == ["and Rome?", "", ""]


def test_null_and_empty_keys_are_absent() -> None:
    (message,) = normalize_messages(
        [{"role": "assistant", "content": "x", "tool_calls": [], "name": None, "audio": None}]
    )
    assert message == {"role": "assistant", "content": "x"}


@pytest.mark.parametrize(
    ("arguments", "parsed"),
    [('{"a": 1}', {"a": 1}), ({"a": 1}, {"a": 1}), ("", {}), ("  ", {}), (None, {})],
)
def test_arguments_are_objects(arguments: Any, parsed: dict[str, Any]) -> None:
    given = call(arguments)
    (message,) = normalize_messages([given])
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": parsed}
    assert given["tool_calls"][0]["function"]["arguments"] == arguments  # the caller's own is not changed


@pytest.mark.parametrize(
    ("message", "word"),
    [
        (call("{bad"), "valid JSON"),
        (call('{"a": NaN}'), "NaN"),
        (call("[1]"), "JSON object"),
        (call("1" * 5000), "JSON"),
        (call("[" * 100_000), "recursion"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "image_url"),
        ({"role": "user", "content": [{"type": "text"}]}, "must be a text"),
        ({"role": "user", "content": [3]}, "parts"),
        ({"role": "user", "content": 3}, "content"),
        ({"content": "x"}, "role"),
        ("hello", "role"),
        ({"role": "assistant", "tool_calls": "x"}, "tool_calls"),
        ({"role": "assistant", "tool_calls": [{"id": "1"}]}, "function"),
    ],
)
def test_what_no_template_could_show_is_the_clients_fault(message: Any, word: str) -> None:
    with pytest.raises(InvalidRequest, match=word) as raised:
        normalize_messages([message])
    assert (raised.value.status, raised.value.param) == (400, "messages")


def test_no_messages() -> None:
    with pytest.raises(InvalidRequest, match="empty"):
        normalize_messages([])


def test_texts_are_mapped_everywhere_but_in_known_roles() -> None:
    assert map_texts({"k": ["v", 1, {"x": None}]}, str.upper) == {"K": ["V", 1, {"X": None}]}
    assert map_message({"role": "user", "content": "a", "name": "b"}, str.upper) == {
        "role": "user",
        "content": "A",
        "name": "B",
    }
    assert map_message({"role": "<|x|>", "content": ""}, str.upper)["role"] == "<|X|>"
