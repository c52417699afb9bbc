"""Attention over paged KV, and the two operators that write it. Letters as in `kernels/reference.py`.

A cache is one layer of a group, [2, blocks, K, block_size, D], in int8 with scales behind (`kv_cache.py`); the caller
owns it. A slot of -1 (padding) is not written.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tandem.engine.kernels import reference
from tandem.engine.kernels.ops import kv_cache
from tandem.engine.kernels.ops.backend import on_triton
from tandem.engine.kernels.step import GroupTensors, StepTensors


@torch.library.custom_op("tandem::write_kv", mutates_args=("cache",))
def write_kv(keys: Tensor, values: Tensor, slot_mapping: Tensor, cache: Tensor) -> None:
    """keys, values: [T, K, D]; slot_mapping: ints [T]."""
    kv_cache.store(cache, keys, values, slot_mapping.long())


@write_kv.register_fake
def _(keys: Tensor, values: Tensor, slot_mapping: Tensor, cache: Tensor) -> None:
    return None


@torch.library.custom_op("tandem::rope_write", mutates_args=("cache",))
def rope_write(
    qkv: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    cos_sin: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    cache: Tensor,
    num_heads: int,
    num_kv_heads: int,
    eps: float,
) -> Tensor:
    """From the QKV product [T, (Q + 2K) · D] to rotated queries [T, Q, D]; keys and values go to their slots.

    cos_sin: float32 [positions, D], cosines then sines of every position. Norms come both or not at all.
    """
    here = cos_sin[positions]
    if on_triton(qkv):
        return _rope_write_kernel(qkv, q_norm, k_norm, here, slot_mapping, cache, num_heads, eps)
    cos, sin = here.unsqueeze(1).chunk(2, dim=-1)
    heads = qkv.view(len(qkv), num_heads + 2 * num_kv_heads, -1)
    queries, keys, values = torch.split(heads, [num_heads, num_kv_heads, num_kv_heads], dim=1)
    if q_norm is not None and k_norm is not None:
        queries = reference.rms_norm(queries, q_norm, eps).to(qkv.dtype)
        keys = reference.rms_norm(keys, k_norm, eps).to(qkv.dtype)
    kv_cache.store(cache, reference.apply_rope(keys, cos, sin), values, slot_mapping.long())
    return reference.apply_rope(queries, cos, sin)


def _rope_write_kernel(
    qkv: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    cos_sin: Tensor,
    slots: Tensor,
    cache: Tensor,
    num_heads: int,
    eps: float,
) -> Tensor:
    from tandem.engine.kernels.triton.language import PagedKV
    from tandem.engine.kernels.triton.rope_kv import Rope, rope_and_write_kv

    cos, sin = cos_sin.chunk(2, dim=-1)
    rope = Rope(cos.contiguous(), sin.contiguous())
    kv = PagedKV(*kv_cache.split_cache(cache))
    return rope_and_write_kv(qkv, kv, slots, rope, num_heads, q_norm=q_norm, k_norm=k_norm, eps=eps)


@rope_write.register_fake
def _(
    qkv: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    cos_sin: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    cache: Tensor,
    num_heads: int,
    num_kv_heads: int,
    eps: float,
) -> Tensor:
    return qkv.new_empty((qkv.shape[0], num_heads, qkv.shape[1] // (num_heads + 2 * num_kv_heads)))


@torch.library.custom_op("tandem::attention", mutates_args=())
def attention(
    queries: Tensor,
    cache: Tensor,
    query_start: Tensor,
    context_len: Tensor,
    block_table: Tensor,
    scale: float,
    window: int | None,
    soft_cap: float | None,
    one_query: bool = False,
) -> Tensor:
    """[T, Q, D] → [T, Q, D], causal; a sequence's queries are its last ones. Rows behind `query_start[-1]` are padding
    and may hold anything. A sequence without queries has any context.

    one_query: token i is sequence i, which the caller vouches for; padding has a context of 0 (and `query_start` isn't
    looked at). On a GPU this saves a launch; otherwise the kernels see for themselves what a sequence has.
    """
    nothing = query_start.new_empty(0)
    step = StepTensors(nothing, nothing, query_start, context_len, [], nothing)
    group = GroupTensors(block_table, nothing)
    if on_triton(queries):
        return _attention_kernel(queries, cache, step, group, scale, window, soft_cap, one_query)
    if one_query:
        # Padding has no context, so it gets no query.
        step.query_start = torch.nn.functional.pad((context_len > 0).int().cumsum(0), (1, 0)).int()
    used = int(step.query_start[-1])
    out = torch.zeros_like(queries)
    out[:used] = reference.paged_attention(
        queries[:used], kv_cache.widened(cache), step, group, scale=scale, window=window, soft_cap=soft_cap
    )
    return out


def _attention_kernel(
    queries: Tensor,
    cache: Tensor,
    step: StepTensors,
    group: GroupTensors,
    scale: float,
    window: int | None,
    soft_cap: float | None,
    one_query: bool,
) -> Tensor:
    from tandem.engine.kernels.triton.attention import StepLayout, paged_attention
    from tandem.engine.kernels.triton.language import PagedKV

    num_tokens, num_sequences = len(queries), len(step.context_len)
    longest = group.block_tables.shape[1] * cache.shape[3]
    layout = StepLayout(
        num_sequences,
        num_decodes=num_sequences if one_query else 0,
        max_queries=1 if one_query else num_tokens,
        max_context=longest,
        decides_on_device=not one_query,
    )
    kv = PagedKV(*kv_cache.split_cache(cache))
    return paged_attention(queries, kv, step, group, layout, scale=scale, window=window, soft_cap=soft_cap)


@attention.register_fake
def _(
    queries: Tensor,
    cache: Tensor,
    query_start: Tensor,
    context_len: Tensor,
    block_table: Tensor,
    scale: float,
    window: int | None,
    soft_cap: float | None,
    one_query: bool = False,
) -> Tensor:
    return torch.empty_like(queries)
