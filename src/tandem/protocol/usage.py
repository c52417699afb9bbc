"""What an answer cost, in tokens (OpenAI's `usage`) and in time (Tandem's extension beside it)."""

from __future__ import annotations

import msgspec


class PromptTokensDetails(msgspec.Struct, kw_only=True):
    cached_tokens: int = 0
    """Prompt tokens whose KV was reused from an earlier request, and not computed again."""


class TandemUsage(msgspec.Struct, kw_only=True):
    """Where the time went. Of several answers to one request: the longest wait, and the sum of what was used."""

    queue_s: float
    """Waiting: from arrival until the scheduler first gave it a seat. Wall time."""
    prefill_s: float
    """From that seat to the first output token. Wall time."""
    decode_s: float
    """From the first output token to the last. Wall time."""
    engine_s: float
    """The engine's busy time that is this request's: each step's time is divided among the requests in it by
    predicted work, so the sum over all requests is the time the engine was busy. This is what a token costs."""
    kv_block_s: float
    """Blocks of KV held, integrated over the seconds they were held. This is what waiting for room costs others."""


class Usage(msgspec.Struct, kw_only=True):
    """OpenAI's token counts. A prompt is counted once however many answers were asked for."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None
    tandem: TandemUsage | msgspec.UnsetType = msgspec.UNSET
    """In the last usage of an answer only, and only where the engine reported it."""


def make_usage(
    prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0, tandem: TandemUsage | None = None
) -> Usage:
    """A usage whose total is right."""
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=cached_tokens),
        tandem=msgspec.UNSET if tandem is None else tandem,
    )
