"""What is to be sent: conversations of one or more turns. A plain request is a conversation of one turn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Turn:
    """One request. In a later turn the conversation so far, with the server's own answers, stands before it."""

    messages: tuple[dict[str, Any], ...]
    """What this turn adds, in OpenAI's form."""
    input_tokens: int
    """Estimated, of what this turn adds; the endpoint's usage says what it was."""
    max_tokens: int
    must_reach_max: bool = True
    """The answer is to have exactly `max_tokens`, as recorded, wherever the endpoint can be told so."""
    pause_s: float = 0.0
    """The user reads and types: from the former answer's end to this turn."""


@dataclass(frozen=True, slots=True)
class Conversation:
    turns: tuple[Turn, ...]
    at_s: float | None = None
    """When it began, where it comes from a trace."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Body fields of its own, such as `temperature`."""


def user_turn(text: str, input_tokens: int, max_tokens: int, *, pause_s: float = 0.0) -> Turn:
    return Turn(({"role": "user", "content": text},), input_tokens, max_tokens, pause_s=pause_s)


def single(turn: Turn, at_s: float | None = None) -> Conversation:
    return Conversation((turn,), at_s)
