"""From a request's bytes to a checked request. Everything wrong with it is said here, before any work is done.

What needs the model (vocabulary, context length, its name) is checked by the engine's front.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

import msgspec

from tandem.core.errors import InvalidRequest
from tandem.protocol.chat import ChatCompletionRequest
from tandem.protocol.completions import CompletionRequest
from tandem.protocol.generation import GenerationRequest
from tandem.protocol.headers import check_priority, check_salt
from tandem.protocol.json_errors import invalid_json
from tandem.protocol.messages import check_messages
from tandem.protocol.service_tier import class_of_tier
from tandem.protocol.tokenize import DetokenizeRequest, TokenizeRequest
from tandem.protocol.unsupported import hints_without_effect, refuse_unsupported


class _HasUnknownFields(Protocol):
    unknown_fields: tuple[str, ...]


RequestT = TypeVar("RequestT", bound=_HasUnknownFields)
_names_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _BodyDecoder(Generic[RequestT]):
    """Decodes one request type, and names the top-level fields it doesn't have."""

    def __init__(self, request_type: type[RequestT]) -> None:
        self._decoder = msgspec.json.Decoder(request_type)
        known = {field.encode_name for field in msgspec.structs.fields(request_type)}  # type: ignore[arg-type]
        self._known = frozenset(known - {"unknown_fields"})

    def decode(self, body: bytes) -> RequestT:
        try:
            request = self._decoder.decode(body)
            names = _names_decoder.decode(body)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise invalid_json(error, body) from error
        request.unknown_fields = tuple(name for name in names if name not in self._known)
        return request


_chat = _BodyDecoder(ChatCompletionRequest)
_completion = _BodyDecoder(CompletionRequest)
_tokenize = _BodyDecoder(TokenizeRequest)
_detokenize = _BodyDecoder(DetokenizeRequest)


def decode_chat(body: bytes, *, strict_fields: bool = False) -> ChatCompletionRequest:
    """Raises `InvalidRequest` naming the field. `strict_fields` refuses those that have no effect."""
    request = _chat.decode(body)
    request.unknown_fields += hints_without_effect(request)
    _refuse_unknown(request.unknown_fields, strict_fields)
    check_messages(request.messages)
    _check_continuation(request)
    _check_common(request)
    return request


def decode_completion(body: bytes, *, strict_fields: bool = False) -> CompletionRequest:
    """Raises `InvalidRequest` naming the field; also for an empty prompt or one of mixed kinds."""
    request = _completion.decode(body)
    _refuse_unknown(request.unknown_fields, strict_fields)
    request.prompts()
    _check_common(request)
    return request


def decode_tokenize(body: bytes, *, strict_fields: bool = False) -> TokenizeRequest:
    request = _tokenize.decode(body)
    _refuse_unknown(request.unknown_fields, strict_fields)
    if (request.prompt is None) == (request.messages is None):
        raise InvalidRequest("Exactly one of prompt and messages must be given.", param="prompt")
    if request.messages is not None:
        check_messages(request.messages)
        if request.add_special_tokens:
            raise InvalidRequest("A chat template writes its own special tokens.", param="add_special_tokens")
    if request.chat_template:
        raise InvalidRequest("chat_template is not accepted from clients.", param="chat_template")
    return request


def decode_detokenize(body: bytes, *, strict_fields: bool = False) -> DetokenizeRequest:
    request = _detokenize.decode(body)
    _refuse_unknown(request.unknown_fields, strict_fields)
    return request


def _refuse_unknown(names: tuple[str, ...], strict_fields: bool) -> None:
    if names and strict_fields:
        listed = ", ".join(f"{name!r:.60}" for name in names[:10])
        raise InvalidRequest(f"These fields are not known or have no effect here: {listed}.", param=names[0][:60])


def _check_continuation(request: ChatCompletionRequest) -> None:
    if not request.continue_final_message:
        return
    if request.add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message and add_generation_prompt exclude each other; set one of them to false.",
            param="continue_final_message",
        )


def _check_common(request: GenerationRequest) -> None:
    refuse_unsupported(request)
    class_of_tier(request.service_tier)
    check_salt(request.cache_salt)
    if request.priority is not None:
        check_priority(request.priority)
    if request.stream_options is not None and not request.stream:
        raise InvalidRequest("stream_options is only allowed with stream set to true.", param="stream_options")
    if request.prompt_logprobs is not None and request.stream:
        raise InvalidRequest("prompt_logprobs is not available in a stream.", param="prompt_logprobs")
