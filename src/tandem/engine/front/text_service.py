"""What the front needs of the text layer. `local_text.py` implements it over `engine.text`; tests over bytes.

`render_chat`, `encode` and `decode` may be slow and are called from a thread pool, several at once. `open_stream` and
what it returns are used on the event loop, so a push must cost microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tandem.core.sampling_params import SamplingParams
from tandem.protocol.chat import ChatCompletionRequest


class TextDelta(Protocol):
    """What some tokens brought."""

    @property
    def text(self) -> str:
        """What is certain now and was not returned before."""
        ...

    @property
    def stop(self) -> str | None:
        """The stop string that one of these tokens completed; nothing comes after it."""
        ...

    @property
    def num_tokens_used(self) -> int:
        """How many of them belong to the answer: up to the one that completed the stop string."""
        ...


class TextStream(Protocol):
    """One answer's tokens becoming text. Holds back what may be half a character or the beginning of a stop string."""

    def push(self, token_ids: Sequence[int]) -> TextDelta: ...

    def finish(self) -> str:
        """The rest, once no token will follow; "" after a stop string. Half a character comes as U+FFFD, once."""
        ...


class TextService(Protocol):
    """A model's tokenizer and chat template. Raises `InvalidRequest` for what a client got wrong."""

    def render_chat(self, request: ChatCompletionRequest) -> list[int]:
        """The conversation as the model's prompt."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool, parse_special: bool) -> list[int]:
        """`add_special_tokens` adds what the tokenizer puts around a text (BOS); `parse_special` lets control tokens
        that are spelled out in the text act as such."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str: ...

    def token_bytes(self, token_id: int) -> bytes:
        """What the token adds to a text, which may be part of a character. Empty for control tokens."""
        ...

    def token_name(self, token_id: int) -> str:
        """A control token's own spelling, such as `<|im_end|>`."""
        ...

    def open_stream(self, sampling: SamplingParams) -> TextStream: ...
