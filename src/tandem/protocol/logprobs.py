"""How logprobs look on the wire: one shape for chat, one for completions, and vLLM's for a prompt's tokens."""

from __future__ import annotations

from typing import Final

import msgspec

LOGPROB_FLOOR: Final = -9999.0
"""Stands for minus infinity, which JSON can't say; the same floor as OpenAI's."""


def clip(logprob: float) -> float:
    """A logprob JSON can carry. NaN compares false with everything, so it becomes the floor too."""
    return logprob if logprob > LOGPROB_FLOOR else LOGPROB_FLOOR


class TopLogprob(msgspec.Struct):
    """One alternative at a position."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatTokenLogprob(msgspec.Struct):
    """One generated token of a chat answer."""

    token: str
    """Readable text; a token that is not whole UTF-8 is written as `\\xe4\\xbd`."""
    logprob: float
    bytes: list[int] | None
    """What the token adds to the text, in UTF-8. Over all tokens they join to the content."""
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, kw_only=True):
    content: list[ChatTokenLogprob]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct, kw_only=True):
    """Parallel lists, one entry a token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    """None for a prompt's first token: nothing comes before it."""
    top_logprobs: list[dict[str, float] | None]
    """The alternatives and the token itself, so one more than asked for at most."""
    text_offset: list[int]
    """Characters of `text` before the token."""


class PromptLogprob(msgspec.Struct):
    """One candidate at a position of the prompt."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""By position: token id, as a string → its logprob. None at the first position. vLLM's shape."""
