# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# ruff: noqa: N803, N806
"""Between the QKV product and attention, in one pass: bias, norms of q and k, RoPE, and the write of K and V to memory.

Letters as in `kernels/reference.py`. Roundings stand where the reference rounds, so that the two differ by the order of
sums only.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tandem.engine.kernels.triton.language import PagedKV, jit, power_of_two, tl

HEADS_IN_TILE = 16


class Rope(NamedTuple):
    """float32 [T, D/2] each: for the tokens of a step, shared by its layers."""

    cos: Tensor
    sin: Tensor


@jit
def rope_kv_kernel(
    rotated,
    keys,
    values,
    key_scales,
    value_scales,
    projected,
    bias,
    q_norm,
    k_norm,
    cosines,
    sines,
    slots,
    eps,
    Q: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_NORMS: tl.constexpr,
    IS_INT8: tl.constexpr,
):
    """Grid (T, tiles of the Q + 2K heads). projected: [T, (Q + 2K) · D]; rotated: [T, Q, D]; slots: ints [T]."""
    HALF: tl.constexpr = D // 2
    dtype = rotated.dtype.element_ty
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    is_query = head < Q
    is_key = (head >= Q) & (head < Q + K)
    is_value = (head >= Q + K) & (head < Q + 2 * K)
    dims = tl.arange(0, BLOCK_HALF)
    dim_exists = dims < HALF
    exists = (head < Q + 2 * K)[:, None] & dim_exists[None, :]

    # Pairs (i, i + D/2) are rotated together, so a head is held as its two halves.
    within = head[:, None] * D + dims[None, :]
    at = token * (Q + 2 * K) * D + within
    first = tl.load(projected + at, mask=exists, other=0.0).to(tl.float32)
    second = tl.load(projected + at + HALF, mask=exists, other=0.0).to(tl.float32)
    if HAS_BIAS:
        first = (first + tl.load(bias + within, mask=exists, other=0.0).to(tl.float32)).to(dtype).to(tl.float32)
        second = (
            (second + tl.load(bias + within + HALF, mask=exists, other=0.0).to(tl.float32)).to(dtype).to(tl.float32)
        )
    if HAS_NORMS:
        squares = tl.sum(first * first, 1) + tl.sum(second * second, 1)
        factor = 1.0 / tl.sqrt(squares / D + eps)
        factor = tl.where(is_value, 1.0, factor)[:, None]
        q_first = tl.load(q_norm + dims, mask=dim_exists, other=0.0).to(tl.float32)[None, :]
        q_second = tl.load(q_norm + dims + HALF, mask=dim_exists, other=0.0).to(tl.float32)[None, :]
        k_first = tl.load(k_norm + dims, mask=dim_exists, other=0.0).to(tl.float32)[None, :]
        k_second = tl.load(k_norm + dims + HALF, mask=dim_exists, other=0.0).to(tl.float32)[None, :]
        k_first = tl.where(is_value[:, None], 1.0, k_first)
        k_second = tl.where(is_value[:, None], 1.0, k_second)
        first = (first * factor).to(dtype).to(tl.float32) * tl.where(is_query[:, None], q_first, k_first)
        second = (second * factor).to(dtype).to(tl.float32) * tl.where(is_query[:, None], q_second, k_second)
        first = first.to(dtype).to(tl.float32)
        second = second.to(dtype).to(tl.float32)

    cos = tl.load(cosines + token * HALF + dims, mask=dim_exists, other=1.0)[None, :]
    sin = tl.load(sines + token * HALF + dims, mask=dim_exists, other=0.0)[None, :]
    cos = tl.where(is_value[:, None], 1.0, cos)
    sin = tl.where(is_value[:, None], 0.0, sin)
    new_first = (first * cos - second * sin).to(dtype)
    new_second = (second * cos + first * sin).to(dtype)

    q_at = rotated + token * Q * D + within
    tl.store(q_at, new_first, mask=exists & is_query[:, None])
    tl.store(q_at + HALF, new_second, mask=exists & is_query[:, None])

    slot = tl.load(slots + token).to(tl.int64)
    if slot >= 0:
        kv_head = tl.where(is_value, head - Q - K, head - Q)
        place = (slot // BLOCK_SIZE * K + kv_head) * BLOCK_SIZE + slot % BLOCK_SIZE
        kv_at = place[:, None] * D + dims[None, :]
        if IS_INT8:
            wide_first = new_first.to(tl.float32)
            wide_second = new_second.to(tl.float32)
            largest = tl.maximum(tl.max(tl.abs(wide_first), 1), tl.max(tl.abs(wide_second), 1))
            per_unit = tl.where(largest > 0.0, 127.0 / tl.where(largest > 0.0, largest, 1.0), 0.0)
            stored_first = tl.floor(wide_first * per_unit[:, None] + 0.5).to(tl.int8)
            stored_second = tl.floor(wide_second * per_unit[:, None] + 0.5).to(tl.int8)
            tl.store(key_scales + place, largest / 127.0, mask=is_key)
            tl.store(value_scales + place, largest / 127.0, mask=is_value)
        else:
            stored_first = new_first.to(keys.dtype.element_ty)
            stored_second = new_second.to(keys.dtype.element_ty)
        tl.store(keys + kv_at, stored_first, mask=exists & is_key[:, None])
        tl.store(keys + kv_at + HALF, stored_second, mask=exists & is_key[:, None])
        tl.store(values + kv_at, stored_first, mask=exists & is_value[:, None])
        tl.store(values + kv_at + HALF, stored_second, mask=exists & is_value[:, None])


def rope_and_write_kv(
    projected: Tensor,
    kv: PagedKV,
    slots: Tensor,
    rope: Rope,
    num_heads: int,
    *,
    bias: Tensor | None = None,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor:
    """From the QKV product [T, (Q + 2K) · D] to rotated queries, [T, Q, D]; keys and values go to their slots.

    A slot of -1 (padding) is not written. Norms come both or not at all.
    """
    data, scales = kv
    _, _, num_kv_heads, block_size, head_dim = data.shape
    assert projected.shape[1] == (num_heads + 2 * num_kv_heads) * head_dim
    assert projected.is_contiguous()
    assert (q_norm is None) == (k_norm is None)
    rotated = torch.empty((len(projected), num_heads, head_dim), dtype=projected.dtype, device=projected.device)
    heads = min(HEADS_IN_TILE, power_of_two(num_heads + 2 * num_kv_heads))
    rope_kv_kernel[(len(projected), -(-(num_heads + 2 * num_kv_heads) // heads))](
        rotated,
        data[0],
        data[1],
        data if scales is None else scales[0],
        data if scales is None else scales[1],
        projected,
        projected if bias is None else bias,
        projected if q_norm is None else q_norm,
        projected if k_norm is None else k_norm,
        rope.cos,
        rope.sin,
        slots,
        eps,
        Q=num_heads,
        K=num_kv_heads,
        D=head_dim,
        BLOCK_SIZE=block_size,
        HEADS=heads,
        BLOCK_HALF=power_of_two(head_dim // 2),
        HAS_BIAS=bias is not None,
        HAS_NORMS=q_norm is not None,
        IS_INT8=scales is not None,
    )
    return rotated
