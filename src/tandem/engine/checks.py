"""Checks that need the model at hand: its context length and its vocabulary. All of them before any engine work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tandem.core.errors import InvalidRequest
from tandem.core.sampling_params import SamplingParams


def check_token_ids(token_ids: Sequence[int], vocab_size: int, param: str) -> None:
    """Raises `InvalidRequest` that names the bad id; one that reached the model would index outside its embedding."""
    if token_ids and (min(token_ids) < 0 or max(token_ids) >= vocab_size):
        _refuse(next(token for token in token_ids if not 0 <= token < vocab_size), vocab_size, param)


def check_sampling_ids(sampling: SamplingParams, vocab_size: int) -> None:
    _check_each(sampling.logit_bias, vocab_size, "logit_bias")
    _check_each(sampling.stop_token_ids, vocab_size, "stop_token_ids")


def _check_each(token_ids: Iterable[int], vocab_size: int, param: str) -> None:
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            _refuse(token_id, vocab_size, param)


def _refuse(token_id: int, vocab_size: int, param: str) -> None:
    raise InvalidRequest(
        f"{param} has the token id {token_id}; the model's vocabulary goes from 0 to {vocab_size - 1}.", param=param
    )


def check_text_length(num_chars: int, longest_token_bytes: int, max_model_len: int, param: str) -> None:
    """Refuse a text that can't fit however well it is tokenised, before the seconds and gigabytes that would take."""
    least = num_chars // longest_token_bytes
    if least > max_model_len:
        raise InvalidRequest(
            f"{param} has {num_chars} characters, which are more than {least} tokens; the context of this model holds "
            f"{max_model_len}. Shorten it.",
            param=param,
            code="context_length_exceeded",
        )


def fit_to_context(
    sampling: SamplingParams,
    num_prompt_tokens: int,
    max_model_len: int,
    *,
    param: str,
    is_limit_given: bool,
    limit_param: str = "max_tokens",
) -> SamplingParams:
    """The parameters with `max_tokens` filled in. A limit that the client gave must fit; a default is cut to fit.

    Raises `InvalidRequest` for an empty prompt, and for a context that is too short.
    """
    if num_prompt_tokens == 0:
        raise InvalidRequest(f"{param} has no tokens; there must be at least one to continue from.", param=param)
    left = max_model_len - num_prompt_tokens
    wanted = sampling.max_tokens
    least = wanted if is_limit_given and wanted is not None else 1
    if least > left:
        raise _too_long(num_prompt_tokens, least, max_model_len, param if left < 1 else limit_param)
    return replace(sampling, max_tokens=left if wanted is None else min(wanted, left))


def _too_long(num_prompt_tokens: int, num_wanted: int, max_model_len: int, param: str) -> InvalidRequest:
    return InvalidRequest(
        f"The prompt has {num_prompt_tokens} tokens and at least {num_wanted} are to be generated, "
        f"{num_prompt_tokens + num_wanted} in all; the context of this model holds {max_model_len}. "
        "Shorten the prompt or ask for fewer tokens.",
        param=param,
        code="context_length_exceeded",
    )
