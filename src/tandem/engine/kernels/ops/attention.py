"""Attention over paged KV, and the two operators that write it. Letters as in `kernels/reference.py`.

A cache is one layer of a group, [2, blocks, K, block_size, D]; the caller owns it. A slot of -1 (padding) is not
written.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tandem.engine.kernels import reference
from tandem.engine.kernels.ops.backend import on_triton
from tandem.engine.kernels.step import GroupTensors, StepTensors


@torch.library.custom_op("tandem::write_kv", mutates_args=("cache",))
def write_kv(keys: Tensor, values: Tensor, slot_mapping: Tensor, cache: Tensor) -> None:
    """keys, values: [T, K, D]; slot_mapping: ints [T]."""
    reference.write_kv(cache, keys, values, slot_mapping.long())


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
    reference.write_kv(cache, reference.apply_rope(keys, cos, sin), values, slot_mapping.long())
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
    return rope_and_write_kv(qkv, PagedKV(cache), slots, rope, num_heads, q_norm=q_norm, k_norm=k_norm, eps=eps)


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
) -> Tensor:
    """[T, Q, D] → [T, Q, D], causal; a sequence's queries are its last ones. Rows behind `query_start[-1]` are padding
    and may hold anything.

    On a GPU nothing is read back, so T == S is taken as "token i is sequence i, each with one query".
    """
    nothing = query_start.new_empty(0)
    step = StepTensors(nothing, nothing, query_start, context_len, [], nothing)
    group = GroupTensors(block_table, nothing)
    if on_triton(queries):
        return _attention_kernel(queries, cache, step, group, scale, window, soft_cap)
    used = int(query_start[-1])
    out = torch.zeros_like(queries)
    out[:used] = reference.paged_attention(
        queries[:used], cache, step, group, scale=scale, window=window, soft_cap=soft_cap
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
) -> Tensor:
    from tandem.engine.kernels.triton.attention import StepLayout, paged_attention
    from tandem.engine.kernels.triton.language import PagedKV

    num_tokens, num_sequences = len(queries), len(step.context_len)
    num_decodes = num_sequences if num_tokens == num_sequences else 0
    longest = group.block_tables.shape[1] * cache.shape[3]
    layout = StepLayout(num_sequences, num_decodes, 1 if num_decodes else num_tokens, longest)
    return paged_attention(queries, PagedKV(cache), step, group, layout, scale=scale, window=window, soft_cap=soft_cap)


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
) -> Tensor:
    return torch.empty_like(queries)
