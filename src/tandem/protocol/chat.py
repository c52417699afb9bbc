"""`POST /v1/chat/completions`: request, answer, and the chunks of a stream."""

from __future__ import annotations

from typing import Any

import msgspec

from tandem.protocol.generation import GenerationRequest
from tandem.protocol.logprobs import ChatLogprobs, PromptLogprobs
from tandem.protocol.messages import ChatMessage
from tandem.protocol.usage import Usage


class ChatCompletionRequest(GenerationRequest, kw_only=True, omit_defaults=True):
    """A conversation to continue. Decoded and checked by `decoding.decode_chat`."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    """OpenAI's newer name for `max_tokens`; wins where both are given."""
    logprobs: bool | None = None
    top_logprobs: int | None = None

    # vLLM's: how the conversation becomes a prompt.
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    """Handed to the chat template, for those that know it."""

    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    modalities: list[str] | None = None

    # Refused unless off.
    functions: Any = None
    function_call: Any = None
    audio: Any = None
    web_search_options: Any = None
    chat_template: Any = None
    documents: Any = None
    mm_processor_kwargs: Any = None

    # Hints that have no effect here; named in `unknown_fields` where they ask for something.
    store: bool | None = None
    verbosity: str | None = None
    prediction: Any = None
    moderation: Any = None


class AnswerMessage(msgspec.Struct, kw_only=True):
    """What the model said."""

    content: str | None
    role: str = "assistant"
    refusal: str | None = None


class ChatChoice(msgspec.Struct, kw_only=True):
    """One of the n answers."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    """The stop string or token id that ended it. vLLM's extension."""


class ChatCompletionResponse(msgspec.Struct, kw_only=True):
    """A whole answer."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    object: str = "chat.completion"
    service_tier: str | None = None
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET


class Delta(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a chunk adds. The first of each choice brings the role."""

    role: str | None = None
    content: str | None = None


class ChatChunkChoice(msgspec.Struct, kw_only=True):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | msgspec.UnsetType | None = msgspec.UNSET


class ChatCompletionChunk(msgspec.Struct, kw_only=True):
    """One event of a stream. The usage chunk has no choices."""

    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    object: str = "chat.completion.chunk"
    service_tier: str | None = None
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
