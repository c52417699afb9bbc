"""Features that this engine doesn't have yet. Asking for one is refused by name; it is never silently left out."""

from __future__ import annotations

from typing import Any, Final

from tandem.core.errors import InvalidRequest
from tandem.protocol.chat import ChatCompletionRequest
from tandem.protocol.completions import CompletionRequest
from tandem.protocol.generation import GenerationRequest

_REFUSED: Final = (
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structured_outputs",
    "logits_processors",
    "allowed_token_ids",
    "bad_words",
    "use_beam_search",
    "truncate_prompt_tokens",
    "prompt_embeds",
    "return_token_ids",
    "return_tokens_as_token_ids",
    "kv_transfer_params",
)
_REFUSED_IN_CHAT: Final = ("functions", "audio", "web_search_options", "documents", "mm_processor_kwargs")
_HINTS: Final = ("store", "verbosity", "prediction", "moderation")
_OFF: Final[tuple[Any, ...]] = (None, False, "", [], {})
"""Values that ask for nothing, so that a client which always sends a field is served."""


def refuse_unsupported(request: GenerationRequest) -> None:
    """Raises `InvalidRequest` for the first feature asked for that isn't there."""
    for name in _REFUSED:
        _refuse(name, getattr(request, name) not in _OFF)
    _refuse("best_of", (request.best_of or 1) != 1)
    response_format = request.response_format
    _refuse("response_format", bool(response_format) and response_format != {"type": "text"})
    if isinstance(request, ChatCompletionRequest):
        _refuse_in_chat(request)
    if isinstance(request, CompletionRequest):
        _refuse("suffix", bool(request.suffix))


def hints_without_effect(request: ChatCompletionRequest) -> tuple[str, ...]:
    """OpenAI's fields that may be ignored without changing what an answer means."""
    return tuple(name for name in _HINTS if getattr(request, name) not in _OFF)


def _refuse_in_chat(request: ChatCompletionRequest) -> None:
    if request.chat_template:
        raise InvalidRequest(
            "chat_template is not accepted from clients; the model's own template is used.", param="chat_template"
        )
    for name in _REFUSED_IN_CHAT:
        _refuse(name, getattr(request, name) not in _OFF)
    _refuse("add_special_tokens", bool(request.add_special_tokens))  # a template writes its own
    _refuse("tools", bool(request.tools) and request.tool_choice != "none")
    _refuse("tool_choice", request.tool_choice not in (None, "none", "auto"))
    _refuse("function_call", request.function_call not in (*_OFF, "none", "auto"))
    _refuse("modalities", (request.modalities or ["text"]) != ["text"])


def _refuse(name: str, is_asked_for: bool) -> None:
    if is_asked_for:
        raise InvalidRequest(f"{name} is not supported by this engine yet.", param=name)
