"""Brings a conversation into the one form that chat templates can be trusted with. Knows no template.

Templates are written against well-formed examples: they print a null content as the word None, walk through tool calls
that aren't there, and take a call's arguments for an object where the API has a text with JSON in it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from tandem.core.errors import InvalidRequest

Message = dict[str, Any]

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
"""Roles that templates ask for by name."""


def normalize_messages(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """New messages; the given ones are not changed. Raises `InvalidRequest` for what no template could show.

    content     always a text: parts are joined in their order, null and absent become ""
    tool_calls  absent if empty; arguments are objects
    the rest    as given, without the keys that are null
    """
    if not messages:
        _refuse("messages is empty; a chat needs at least one message.")
    return [_message(message, f"messages[{number}]") for number, message in enumerate(messages)]


def _message(message: Mapping[str, Any], where: str) -> Message:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        _refuse(f"{where} must be an object with a role.")
    normal = {key: value for key, value in message.items() if value is not None}
    normal["content"] = _text(message.get("content"), f"{where}.content")
    calls = normal.pop("tool_calls", None)
    if calls:
        normal["tool_calls"] = _tool_calls(calls, f"{where}.tool_calls")
    return normal


def _text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return "".join(_part(part, f"{where}[{number}]") for number, part in enumerate(content))
    return _refuse(f"{where} must be a text or a list of parts.")


def _part(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    key = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}.get(str(kind))
    if key is None:
        _refuse(f"{where} is of type {kind!r:.40}; this model reads text only: parts must be of type 'text'.")
    text = part.get(key)
    return text if isinstance(text, str) else _refuse(f"{where}.{key} must be a text.")


def _tool_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        _refuse(f"{where} must be a list.")
    return [_tool_call(call, f"{where}[{number}]") for number, call in enumerate(calls)]


def _tool_call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        _refuse(f"{where}.function must be an object with a name.")
    arguments = _arguments(function.get("arguments"), f"{where}.function.arguments")
    return {**call, "function": {**function, "arguments": arguments}}


def _arguments(value: Any, where: str) -> dict[str, Any]:
    if isinstance(value, str):
        value = _parsed(value, where) if value.strip() else {}
    if value is None:
        return {}
    return dict(value) if isinstance(value, Mapping) else _refuse(f"{where} must be a JSON object.")


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{where} isn't valid JSON: {error}.", param="messages") from error


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")


def _refuse(message: str) -> NoReturn:
    raise InvalidRequest(message, param="messages")


def map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """A copy of JSON-like data with `change` applied to every text, the keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {map_texts(key, change): map_texts(inner, change) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [map_texts(inner, change) for inner in value]
    return value


def map_message(message: Message, change: Callable[[str], str]) -> Message:
    """The same for a message. Its own keys stay, and its role, if it is one that templates compare with."""
    return {
        key: value if key == "role" and value in ROLES else map_texts(value, change) for key, value in message.items()
    }
