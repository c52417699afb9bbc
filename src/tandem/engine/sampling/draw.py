"""The likely set of one row (min_p, top_k, top_p), and one draw from it by inverting the distribution function.

In numpy, on one thread: a row is too small to share between threads, and waking them would cost more than the work.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tandem.core.sampling_params import SamplingParams

Floats = npt.NDArray[np.floating]
FIRST_TRY = 1024
"""Candidates looked at before the whole row is sorted: the likely set is nearly always among them."""


def draw(logits: npt.NDArray[np.float32], params: SamplingParams, uniform: float) -> int:
    """A token for `uniform` in [0, 1). logits: float32 [V], adjusted, not all -inf.

    The order is vLLM's: temperature, then min_p, then top_k, then top_p over what is left.
    """
    # Dividing the distance to the maximum can only underflow, never overflow, however small the temperature.
    weights = np.exp((logits - logits.max()) / np.float32(params.temperature))
    if params.top_k <= 0 and params.top_p >= 1.0 and params.min_p <= 0.0:
        return _invert(weights, uniform)
    ids = _likely_set(weights, params)
    return int(ids[_invert(weights[ids], uniform)])


def _likely_set(weights: Floats, params: SamplingParams) -> npt.NDArray[np.intp]:
    """Ids of the tokens that stay, likeliest first. weights: probabilities up to a factor, the largest is 1."""
    limit = min(params.top_k, len(weights)) if params.top_k > 0 else len(weights)
    if params.min_p > 0.0:
        limit = min(limit, int((weights >= params.min_p).sum()))
    ids = _largest(weights, min(limit, FIRST_TRY))
    if params.top_p >= 1.0:
        return ids if len(ids) == limit else _largest(weights, limit)
    total = weights.sum(dtype=np.float64) if limit == len(weights) else None
    kept = _num_within(weights[ids], limit, total, params.top_p)
    if kept is None:
        ids = _largest(weights, limit)
        kept = _num_within(weights[ids], limit, None, params.top_p)
    return ids[:kept]


def _num_within(falling: Floats, limit: int, total: float | None, top_p: float) -> int | None:
    """How many of the `falling` weights reach top_p; None if that can't be told from these alone.

    total: the sum over all `limit` candidates, where it is known without having them.
    """
    if total is None:
        if len(falling) < limit:
            return None
        total = falling.sum(dtype=np.float64)
    reached = falling.cumsum(dtype=np.float64)
    kept = int(((reached - falling) / total < top_p).sum())
    return kept if kept < len(falling) or len(falling) == limit else None


def _largest(weights: Floats, count: int) -> npt.NDArray[np.intp]:
    """Ids of the `count` largest weights, falling; of equal ones, the lower id first."""
    if count < len(weights):
        smallest_kept = np.partition(weights, len(weights) - count)[len(weights) - count]
        candidates = np.flatnonzero(weights >= smallest_kept)
    else:
        candidates = np.arange(len(weights))
    order = np.argsort(-weights[candidates], kind="stable")
    return candidates[order[:count]]


def _invert(weights: Floats, uniform: float) -> int:
    """First index whose cumulative share exceeds `uniform`; never one of weight zero."""
    cumulative = weights.cumsum(dtype=np.float64)
    index = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
    # Rounding can put the target on the very end; what stands there may have no weight.
    return min(index, int(np.flatnonzero(weights)[-1]))
