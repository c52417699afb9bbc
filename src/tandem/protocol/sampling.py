"""From a wire request to `SamplingParams`. Ranges are checked there; here names are mapped and defaults filled in."""

from __future__ import annotations

import re
from typing import Any, Final

from tandem.core.errors import InvalidRequest
from tandem.core.sampling_params import SamplingParams
from tandem.protocol.chat import ChatCompletionRequest
from tandem.protocol.completions import CompletionRequest
from tandem.protocol.generation import GenerationRequest

COMPLETION_MAX_TOKENS: Final = 16
"""OpenAI's default for completions. A chat answer may be as long as the context."""
_SAME_NAME: Final = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "prompt_logprobs",
    "include_stop_str_in_output",
    "min_tokens",
    "ignore_eos",
    "skip_special_tokens",
)
_TOKEN_ID = re.compile(r"-?[0-9]{1,18}")


def to_sampling_params(request: GenerationRequest) -> SamplingParams:
    """`max_tokens` is None where the answer may fill the context. Raises `InvalidRequest` naming the wire's field."""
    given = {name: value for name in _SAME_NAME if (value := getattr(request, name)) is not None}
    given["stop"] = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ())
    given["stop_token_ids"] = tuple(request.stop_token_ids or ())
    given["logit_bias"] = _logit_bias(request.logit_bias)
    if isinstance(request, ChatCompletionRequest):
        return _build(given | _chat_fields(request), _chat_names(request))
    assert isinstance(request, CompletionRequest), type(request)
    return _build(given | _completion_fields(request), {})


def _chat_fields(request: ChatCompletionRequest) -> dict[str, Any]:
    if request.top_logprobs and not request.logprobs:
        raise InvalidRequest("top_logprobs is only allowed with logprobs set to true.", param="top_logprobs")
    newer = request.max_completion_tokens
    return {
        "max_tokens": request.max_tokens if newer is None else newer,
        "logprobs": (request.top_logprobs or 0) if request.logprobs else None,
    }


def _chat_names(request: ChatCompletionRequest) -> dict[str, str]:
    """Our parameter → the field the client wrote, so that an error names that one."""
    names = {"logprobs": "top_logprobs"}
    if request.max_completion_tokens is not None:
        names["max_tokens"] = "max_completion_tokens"
    return names


def _completion_fields(request: CompletionRequest) -> dict[str, Any]:
    filled: dict[str, Any] = {
        "max_tokens": COMPLETION_MAX_TOKENS if request.max_tokens is None else request.max_tokens,
        "logprobs": request.logprobs,
    }
    if request.max_tokens is None and request.min_tokens is not None:
        filled["max_tokens"] = max(COMPLETION_MAX_TOKENS, request.min_tokens)
    if request.echo and request.logprobs is not None and request.prompt_logprobs is None:
        filled["prompt_logprobs"] = request.logprobs
    return filled


def _build(given: dict[str, Any], wire_names: dict[str, str]) -> SamplingParams:
    try:
        return SamplingParams(**given)
    except InvalidRequest as error:
        name = wire_names.get(error.param or "")
        if name is None:
            raise
        message = error.message.replace(str(error.param), name, 1)
        raise InvalidRequest(message, param=name, code=error.code) from None


def _logit_bias(by_name: dict[str, float] | None) -> dict[int, float]:
    for name in by_name or {}:
        if not _TOKEN_ID.fullmatch(name):
            raise InvalidRequest(f"logit_bias has the key {name!r:.60}; keys must be token ids.", param="logit_bias")
    return {int(name): bias for name, bias in (by_name or {}).items()}
