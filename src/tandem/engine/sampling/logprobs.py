"""Natural-log probabilities to report: the model's own, before temperature, penalties and masks."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tandem.engine.messages import TokenLogprobs


def token_logprobs(logits: Tensor, token_ids: list[int], num_top: int) -> list[TokenLogprobs]:
    """For each row of float32 [R, V]: the given token's logprob and rank, and the `num_top` likeliest.

    -inf never leaves here: a chosen token that the model held impossible gets the floor, alternatives are left out.
    """
    chosen_ids = torch.tensor(token_ids, device=logits.device)[:, None]
    normaliser = logits.logsumexp(-1, keepdim=True)
    chosen = logits.gather(-1, chosen_ids)
    ranks = (logits > chosen).sum(-1) + 1
    values, ids = logits.topk(num_top) if num_top else (logits[:, :0], chosen_ids[:, :0])
    rows = zip(
        token_ids,
        (chosen - normaliser)[:, 0].tolist(),
        ranks.tolist(),
        ids.tolist(),
        (values - normaliser).tolist(),
        strict=True,
    )
    return [_row(token, logprob, rank, top_ids, top) for token, logprob, rank, top_ids, top in rows]


LOGPROB_FLOOR = -9999.0
"""Reported for a chosen token of probability zero, as vLLM does."""


def _row(token_id: int, logprob: float, rank: int, top_ids: list[int], top: list[float]) -> TokenLogprobs:
    alternatives = [(i, min(p, 0.0)) for i, p in zip(top_ids, top, strict=True) if math.isfinite(p)]
    return TokenLogprobs(token_id, min(logprob, 0.0) if math.isfinite(logprob) else LOGPROB_FLOOR, rank, alternatives)
