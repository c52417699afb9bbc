"""A chat's messages as clients send them. Parts that are not text are refused here, by name and place."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tandem.core.errors import InvalidRequest

ROLES: Final = ("system", "developer", "user", "assistant", "tool")


class ContentPart(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One piece of a message. Only `text` (and a `refusal` in history) carry something a text model reads."""

    type: str
    text: str | None = None
    refusal: str | None = None


class FunctionCall(msgspec.Struct, kw_only=True):
    name: str
    arguments: str = "{}"
    """JSON in a string, as OpenAI has it."""


class ToolCall(msgspec.Struct, kw_only=True):
    """A call the assistant made earlier in the conversation."""

    function: FunctionCall
    id: str | None = None
    type: str = "function"


class ChatMessage(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One turn. Keys a client left out are left out for the chat template too, which may ask whether they exist."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    """Earlier thinking, for templates that show it."""
    function_call: Any = None
    audio: Any = None

    def text(self) -> str | None:
        """The content as one string: parts in order, joined by nothing."""
        if self.content is None or isinstance(self.content, str):
            return self.content
        return "".join(part.text or part.refusal or "" for part in self.content)


def check_messages(messages: list[ChatMessage]) -> None:
    """Raises `InvalidRequest` that names the message: no messages, an unknown role, or something that is not text."""
    if not messages:
        raise InvalidRequest("messages is empty; it must have at least one message.", param="messages")
    for index, message in enumerate(messages):
        _check_message(message, f"messages[{index}]")


def _check_message(message: ChatMessage, path: str) -> None:
    if message.role not in ROLES:
        allowed = ", ".join(ROLES)
        raise InvalidRequest(f"{path}.role is {message.role!r:.60}; it must be one of {allowed}.", param=f"{path}.role")
    if message.content is None and message.role != "assistant":
        raise InvalidRequest(f"{path}.content is required for the role {message.role}.", param=f"{path}.content")
    for name in ("audio", "function_call"):
        if getattr(message, name):
            raise InvalidRequest(f"{path}.{name} is not supported by this engine yet.", param=f"{path}.{name}")
    if isinstance(message.content, list):
        for index, part in enumerate(message.content):
            _check_part(part, f"{path}.content[{index}]")


def _check_part(part: ContentPart, path: str) -> None:
    if part.type not in ("text", "refusal"):
        raise InvalidRequest(
            f"{path} has the type {part.type!r:.60}; only text is supported by this engine yet.", param=f"{path}.type"
        )
    if (part.text if part.type == "text" else part.refusal) is None:
        raise InvalidRequest(f"{path}.{part.type} is required.", param=f"{path}.{part.type}")
