"""The likely set of one row (min_p, top_k, top_p), and one draw from it by inverting the distribution function."""

from __future__ import annotations

import torch
from torch import Tensor

from tandem.core.sampling_params import SamplingParams

FIRST_TRY = 1024
"""Candidates looked at before the whole row is sorted: the likely set is nearly always among them."""


def draw(logits: Tensor, params: SamplingParams, uniform: float) -> int:
    """A token for `uniform` in [0, 1). logits: float32 [V], adjusted, not all -inf.

    The order is vLLM's: temperature, then min_p, then top_k, then top_p over what is left.
    """
    # Dividing the distance to the maximum can only underflow, never overflow, however small the temperature.
    scaled = (logits - logits.max()) / params.temperature
    if params.top_k <= 0 and params.top_p >= 1.0 and params.min_p <= 0.0:
        return _invert(scaled.double().softmax(-1), uniform)
    values, ids = _likely_set(scaled, params)
    return int(ids[_invert(values.double().softmax(-1), uniform)])


def _likely_set(scaled: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Scores (falling) and ids of the tokens that stay. scaled: log probabilities up to a constant, maximum 0."""
    vocab = scaled.shape[-1]
    limit = min(params.top_k, vocab) if params.top_k > 0 else vocab
    values, ids = scaled.topk(min(limit, FIRST_TRY))
    kept = _num_kept(values, scaled, limit, params)
    if kept is None:
        values, ids = scaled.topk(limit)
        kept = _num_kept(values, scaled, limit, params)
    return values[:kept], ids[:kept]


def _num_kept(values: Tensor, scaled: Tensor, limit: int, params: SamplingParams) -> int | None:
    """How many of the falling `values` stay; None if that can't be told without more of them."""
    num_seen, complete = len(values), len(values) == limit
    if params.min_p > 0.0:
        above = int((values.exp() >= params.min_p).sum())
        if above < num_seen:
            values, complete = values[:above], True
    if params.top_p >= 1.0:
        return len(values) if complete else None
    probabilities = values.double().exp()
    total = probabilities.sum() if complete else scaled.double().exp().sum()
    if not complete and params.min_p > 0.0:
        return None
    before = (probabilities.cumsum(-1) - probabilities) / total
    kept = int((before < params.top_p).sum())
    return max(1, kept) if complete or kept < len(values) else None


def _invert(probabilities: Tensor, uniform: float) -> int:
    """First index whose cumulative probability exceeds `uniform`; never one of probability zero."""
    cumulative = probabilities.cumsum(-1)
    target = torch.tensor(uniform, dtype=cumulative.dtype, device=cumulative.device) * cumulative[-1]
    return min(int(torch.searchsorted(cumulative, target, right=True)), int(probabilities.nonzero()[-1]))
