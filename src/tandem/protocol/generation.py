"""The fields that chat completions and completions share: OpenAI's, and vLLM's beside them.

Every field may be null, which means the same as leaving it out. Ranges are checked by `core.sampling_params`; fields
that this engine can't honour are listed here too, so that `unsupported.py` can refuse them by name.
"""

from __future__ import annotations

from typing import Any

import msgspec


class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool | None = None
    """A last chunk with usage and no choices."""
    continuous_usage_stats: bool | None = None
    """Usage so far in every chunk. vLLM's extension."""


class GenerationRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What both APIs take. Field names are the wire's."""

    model: str
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    """token id, as a string → what is added to its logit."""
    stop: str | list[str] | None = None
    max_tokens: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    service_tier: str | None = None

    # vLLM's sampling parameters beside OpenAI's.
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: int | None = None
    echo: bool | None = None
    add_special_tokens: bool | None = None
    priority: int | None = None
    """Lower is sooner."""
    cache_salt: str | None = None

    # Said about the request or the caller; they change no answer.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None

    # Refused unless off.
    best_of: int | None = None
    response_format: dict[str, Any] | None = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    structured_outputs: Any = None
    logits_processors: Any = None
    allowed_token_ids: Any = None
    bad_words: Any = None
    use_beam_search: Any = None
    truncate_prompt_tokens: Any = None
    prompt_embeds: Any = None
    return_token_ids: Any = None
    return_tokens_as_token_ids: Any = None
    kv_transfer_params: Any = None

    unknown_fields: tuple[str, ...] = ()
    """Names of top-level fields that have no effect here. Filled in by the decoder, never by a client."""

    @property
    def num_answers(self) -> int:
        """How many answers to each prompt were asked for; not checked yet."""
        return 1 if self.n is None else self.n

    @property
    def wants_stream(self) -> bool:
        return bool(self.stream)

    @property
    def wants_stream_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def wants_continuous_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)
