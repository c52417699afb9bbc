"""A client's usage, summed over its prompts and answers."""

from __future__ import annotations

from collections.abc import Sequence

from tandem.engine.front.generation import Generation
from tandem.engine.messages import RequestUsage
from tandem.protocol.usage import TandemUsage, Usage, make_usage


def usage_so_far(generations: Sequence[Generation]) -> Usage:
    """Token counts while answers are still coming."""
    prompt_tokens = sum(generation.num_prompt_tokens for generation in generations)
    return make_usage(prompt_tokens, sum(generation.num_output_tokens for generation in generations))


def final_usage(generations: Sequence[Generation]) -> Usage:
    """Token counts and times once all is done. A prompt counts once, whatever n is."""
    by_generation = [generation.usages() for generation in generations]
    cached = sum(usages[0].num_cached_tokens for usages in by_generation if usages)
    prompt_tokens = sum(generation.num_prompt_tokens for generation in generations)
    output_tokens = sum(generation.num_output_tokens for generation in generations)
    return make_usage(prompt_tokens, output_tokens, cached, _times([u for usages in by_generation for u in usages]))


def _times(usages: Sequence[RequestUsage]) -> TandemUsage | None:
    """Waits overlap, so the longest counts; what was used up adds up."""
    if not usages:
        return None
    return TandemUsage(
        queue_s=max(usage.queue_s for usage in usages),
        prefill_s=max(usage.prefill_s for usage in usages),
        decode_s=max(usage.decode_s for usage in usages),
        engine_s=sum(usage.engine_s for usage in usages),
        kv_block_s=sum(usage.kv_block_s for usage in usages),
    )
