"""`POST /tokenize` and `POST /detokenize`, in vLLM's shapes."""

from __future__ import annotations

from typing import Any

import msgspec

from tandem.protocol.messages import ChatMessage


class TokenizeRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A text, or a conversation to be rendered first: exactly one of the two."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool | None = None
    """Default: true for a text, false for a conversation, whose template writes them itself."""
    return_token_strs: bool | None = None
    parse_special: bool | None = None
    """False: control tokens spelled out in the text stay text. Default: true for a text. Tandem's extension."""
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    chat_template: Any = None
    unknown_fields: tuple[str, ...] = ()
    """Names of top-level fields that have no effect here. Filled in by the decoder, never by a client."""


class TokenizeResponse(msgspec.Struct, kw_only=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    tokens: list[int]
    model: str | None = None
    unknown_fields: tuple[str, ...] = ()
    """Names of top-level fields that have no effect here. Filled in by the decoder, never by a client."""


class DetokenizeResponse(msgspec.Struct, kw_only=True):
    prompt: str
