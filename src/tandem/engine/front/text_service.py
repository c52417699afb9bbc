"""What the front needs of the text layer. `local_text.py` implements it over `engine.text`; tests over bytes.

`render_chat`, `encode` and `decode` may be slow and are called from a thread pool, several at once. `open_stream` and
what it returns are used on the event loop, so a push must cost microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tandem.core.sampling_params import SamplingParams
from tandem.engine.answers import TextStream
from tandem.protocol.chat import ChatCompletionRequest


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

    @property
    def longest_token_bytes(self) -> int:
        """No token stands for more bytes of text than this."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """What the token adds to a text, which may be part of a character. Empty for control tokens."""
        ...

    def token_name(self, token_id: int) -> str:
        """A control token's own spelling, such as `<|im_end|>`."""
        ...

    def open_stream(self, sampling: SamplingParams) -> TextStream: ...
