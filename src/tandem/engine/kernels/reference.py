"""Every operation of the network in plain torch: slow, short, and the oracle that all other kernels are tested against.

Shapes: T tokens of this step over all sequences, S sequences, H hidden, Q query heads, K KV heads, D head size.
Arithmetic that sums (norms, softmax) is in float32 whatever the type of the inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tandem.engine.kernels.step import GroupTensors, StepTensors
from tandem.engine.models.spec import RopeScaling


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`x / rms(x) * weight` over the last dimension, in float32, returned in x's type."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale).to(x.dtype) * weight


def rope_frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> Tensor:
    """Angle by position of each of the D/2 rotated pairs, float32 [D/2]."""
    frequencies = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    if scaling is None:
        return frequencies
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    return _llama3_frequencies(frequencies, scaling)


def _llama3_frequencies(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Llama 3.1: slow rotations are stretched by the factor, fast ones kept, those between blended smoothly."""
    wavelengths = 2 * torch.pi / frequencies
    ratio = scaling.original_max_position / wavelengths
    blend = (ratio - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)
    return frequencies * blend + frequencies / scaling.factor * (1 - blend)


def rope_tables(positions: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines for each token, float32 [T, 1, D/2]."""
    angles = positions.float()[:, None, None] * frequencies
    return angles.cos(), angles.sin()


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs (i, i + D/2) of every head. x: [T, heads, D]."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def write_kv(cache: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    """Store this step's keys and values, [T, K, D] each, at their slots of one layer.

    cache: [2, blocks, K, block_size, D]. A slot of -1 (padding) is not written.
    """
    block_size = cache.shape[3]
    kept = slots >= 0
    slots = slots[kept]
    cache[0, slots // block_size, :, slots % block_size] = keys[kept].to(cache.dtype)
    cache[1, slots // block_size, :, slots % block_size] = values[kept].to(cache.dtype)


def paged_attention(
    queries: Tensor,
    cache: Tensor,
    step: StepTensors,
    group: GroupTensors,
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
) -> Tensor:
    """Causal attention of this step's queries, [T, Q, D], over each sequence's paged KV; returns the same shape.

    Prefill chunks and single tokens are one case: the queries of a sequence are its last ones.
    """
    output = torch.empty_like(queries)
    starts, lengths = step.query_start.tolist(), step.context_len.tolist()
    for sequence, length in enumerate(lengths):
        begin, end = starts[sequence], starts[sequence + 1]
        if begin == end:
            continue
        keys, values = gather_kv(cache, group.block_tables[sequence], length)
        output[begin:end] = attention(queries[begin:end], keys, values, scale=scale, window=window, soft_cap=soft_cap)
    return output


def gather_kv(cache: Tensor, block_table: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """The first `length` keys and values of a sequence, [K, length, D] each, from its blocks in order."""
    num_blocks = -(-length // cache.shape[3])
    # Entries that a window has moved past are -1; the mask hides whatever block 0 has there.
    blocks = block_table[:num_blocks].long().clamp(min=0)
    pages = cache[:, blocks].transpose(1, 2).flatten(2, 3)
    return pages[0, :, :length], pages[1, :, :length]


def attention(
    queries: Tensor, keys: Tensor, values: Tensor, *, scale: float, window: int | None, soft_cap: float | None
) -> Tensor:
    """queries [n, Q, D] at the last n positions of keys and values [K, length, D]; returns [n, Q, D]."""
    num_queries, num_heads, _ = queries.shape
    num_kv_heads, length, _ = keys.shape
    grouped = queries.float().transpose(0, 1).reshape(num_kv_heads, num_heads // num_kv_heads, num_queries, -1)
    scores = grouped @ keys.float().unsqueeze(1).transpose(-1, -2) * scale
    if soft_cap is not None:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    visible = causal_mask(num_queries, length, window, queries.device)
    weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
    # A masked value may be anything, even NaN from memory never written, and 0 · NaN is NaN.
    hidden = ~visible.any(0)
    mixed = weights @ values.float().masked_fill(hidden[:, None], 0.0).unsqueeze(1)
    return mixed.flatten(0, 1).transpose(0, 1).to(queries.dtype)


def causal_mask(num_queries: int, length: int, window: int | None, device: torch.device) -> Tensor:
    """True where query i (at position length - num_queries + i) may look, bool [num_queries, length]."""
    at = torch.arange(length - num_queries, length, device=device)[:, None]
    to = torch.arange(length, device=device)[None, :]
    visible: Tensor = to <= at
    return visible if window is None else visible & (to > at - window)


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    return torch.nn.functional.silu(gate) * up


def gelu_tanh_mul(gate: Tensor, up: Tensor) -> Tensor:
    return torch.nn.functional.gelu(gate, approximate="tanh") * up


def soft_cap_(logits: Tensor, cap: float | None) -> Tensor:
    return logits if cap is None else cap * torch.tanh(logits / cap)
