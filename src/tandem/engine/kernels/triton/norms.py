# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# ruff: noqa: N803
"""RMSNorm, with the residual sum before it and, for Gemma, the norm of what is added, in one pass over a row."""

from __future__ import annotations

import torch
from torch import Tensor

from tandem.engine.kernels.triton.language import jit, power_of_two, tl


@jit
def _normalised(x, weight, eps, H: tl.constexpr, dtype: tl.constexpr):
    """x: float32 [BLOCK], zero behind H. Rounded to `dtype` before the weight, as the reference does."""
    scale = 1.0 / tl.sqrt(tl.sum(x * x, 0) / H + eps)
    return ((x * scale).to(dtype).to(tl.float32) * weight).to(dtype)


@jit
def rms_norm_kernel(
    output,
    x,
    residual,
    weight,
    inner_weight,
    eps,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    HAS_INNER: tl.constexpr,
):
    """Grid (rows). x, residual, output: [rows, H]; weights: [H]."""
    at = tl.program_id(0).to(tl.int64) * H + tl.arange(0, BLOCK)
    column = tl.arange(0, BLOCK)
    exists = column < H
    dtype: tl.constexpr = output.dtype.element_ty
    value = tl.load(x + at, mask=exists, other=0.0).to(tl.float32)
    if HAS_INNER:
        inner = tl.load(inner_weight + column, mask=exists, other=0.0).to(tl.float32)
        value = _normalised(value, inner, eps, H, dtype).to(tl.float32)
    if HAS_RESIDUAL:
        value = (value + tl.load(residual + at, mask=exists, other=0.0).to(tl.float32)).to(dtype)
        tl.store(residual + at, value, mask=exists)
        value = value.to(tl.float32)
    outer = tl.load(weight + column, mask=exists, other=0.0).to(tl.float32)
    tl.store(output + at, _normalised(value, outer, eps, H, dtype), mask=exists)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`reference.rms_norm` of [rows, H]."""
    return _launch(x, None, weight, None, eps)


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, inner_weight: Tensor | None = None
) -> Tensor:
    """residual += x, in place; returns the norm of the sum. With `inner_weight`, x itself is normed before it is added.

    x, residual: [rows, H]. A weight that means 1 + w has its 1 added by the caller.
    """
    assert residual.is_contiguous()
    assert residual.dtype == x.dtype
    return _launch(x, residual, weight, inner_weight, eps)


def _launch(x: Tensor, residual: Tensor | None, weight: Tensor, inner_weight: Tensor | None, eps: float) -> Tensor:
    rows, hidden = x.shape
    assert x.is_contiguous()
    output = torch.empty_like(x)
    block = power_of_two(hidden)
    rms_norm_kernel[(rows,)](
        output,
        x,
        x if residual is None else residual,
        weight,
        weight if inner_weight is None else inner_weight,
        eps,
        H=hidden,
        BLOCK=block,
        HAS_RESIDUAL=residual is not None,
        HAS_INNER=inner_weight is not None,
        num_warps=max(1, min(16, block // 512)),
    )
    return output
