"""One cache of a compiled graph as memory: plain numbers, or int8 with a scale for each token and head.

A graph takes a cache as one tensor, [2, blocks, K, block_size, D]. In int8 that tensor has more blocks than tokens are
stored in: the last ones hold the float32 scales, [blocks, K, block_size] of keys or of values, one after another.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tandem.engine.kernels import reference

_SCALE_BYTES = 4


def cache_shape(
    num_blocks: int, num_kv_heads: int, block_size: int, head_dim: int, dtype: torch.dtype
) -> tuple[int, ...]:
    """Of a cache that stores `num_blocks` blocks of tokens."""
    extra = -(-num_blocks * _SCALE_BYTES // head_dim) if dtype == torch.int8 else 0
    return (2, num_blocks + extra, num_kv_heads, block_size, head_dim)


def split_cache(cache: Tensor) -> tuple[Tensor, Tensor | None]:
    """Views: the numbers, [2, blocks, K, block_size, D], and the scales, [2, blocks, K, block_size], if there are."""
    if cache.dtype != torch.int8:
        return cache, None
    both, total, num_kv_heads, block_size, head_dim = cache.shape
    num_blocks = total * head_dim // (head_dim + _SCALE_BYTES)
    numbers = num_blocks * num_kv_heads * block_size
    tail = cache[:, num_blocks:].flatten(1)[:, : numbers * _SCALE_BYTES]
    return cache[:, :num_blocks], tail.view(torch.float32).view(both, num_blocks, num_kv_heads, block_size)


def store(cache: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    """`reference.write_kv`, for either form."""
    data, scales = split_cache(cache)
    if scales is None:
        return reference.write_kv(data, keys, values, slots)
    kept = slots >= 0
    block, place = slots[kept] // data.shape[3], slots[kept] % data.shape[3]
    for index, new in enumerate((keys[kept].float(), values[kept].float())):
        largest = new.abs().amax(-1, keepdim=True)
        per_unit = torch.where(largest > 0, 127 / largest, 0.0)
        data[index, block, :, place] = (new * per_unit + 0.5).floor().to(torch.int8)
        scales[index, block, :, place] = largest.squeeze(-1) / 127
    return None


def widened(cache: Tensor) -> Tensor:
    """What is stored, as numbers to compute with: the cache itself, but for int8."""
    data, scales = split_cache(cache)
    return data if scales is None else data.float() * scales.unsqueeze(-1)
