"""Changes to one row of logits that a request asked for, before anything is chosen."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor

from tandem.core.request import Request


def needs_adjusting(request: Request) -> bool:
    params = request.sampling
    return bool(params.logit_bias) or params.needs_penalties or _must_go_on(request)


def adjust(logits: Tensor, request: Request) -> None:
    """Apply penalties, biases and the ban on ending too early, in place. logits: float32 [V]."""
    params = request.sampling
    if params.needs_penalties:
        _penalise(logits, request)
    if params.logit_bias:
        ids = torch.tensor(list(params.logit_bias), device=logits.device)
        logits[ids] += torch.tensor(list(params.logit_bias.values()), dtype=logits.dtype, device=logits.device)
    if _must_go_on(request):
        banned = set(params.stop_token_ids) if params.ignore_eos else {*params.stop_token_ids, *request.eos_token_ids}
        logits[torch.tensor(sorted(banned), device=logits.device)] = float("-inf")


def _must_go_on(request: Request) -> bool:
    """Fewer than min_tokens so far, and there are tokens that would end it."""
    params = request.sampling
    if request.num_output_tokens >= params.min_tokens:
        return False
    return bool(params.stop_token_ids) or (bool(request.eos_token_ids) and not params.ignore_eos)


def _penalise(logits: Tensor, request: Request) -> None:
    """repetition_penalty sees prompt and output; presence and frequency see the output only, as OpenAI defines them."""
    params = request.sampling
    if params.repetition_penalty != 1.0:
        seen = torch.tensor(sorted(set(request.token_ids)), device=logits.device)
        scores = logits[seen]
        logits[seen] = torch.where(scores > 0, scores / params.repetition_penalty, scores * params.repetition_penalty)
    output = request.token_ids[request.num_prompt_tokens :]
    if output and (params.presence_penalty or params.frequency_penalty):
        counts = Counter(output)
        ids = torch.tensor(list(counts), device=logits.device)
        times = torch.tensor(list(counts.values()), dtype=logits.dtype, device=logits.device)
        logits[ids] -= params.presence_penalty + params.frequency_penalty * times
