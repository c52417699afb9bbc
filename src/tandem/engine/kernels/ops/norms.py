"""RMSNorm, alone and behind the residual sum; and the same with its result rounded to int8 for an integer product.

Sums are in float32; a norm's result is rounded to the type of its input before and after the float32 weight.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tandem.engine.kernels import reference
from tandem.engine.kernels.ops.activations import quantize_tokens
from tandem.engine.kernels.ops.backend import on_triton


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    if x.dim() == 2 and on_triton(x):
        from tandem.engine.kernels.triton.norms import rms_norm as kernel

        return kernel(x, weight, eps)
    return reference.rms_norm(x, weight, eps).to(x.dtype)


def _add_norm(
    x: Tensor, delta: Tensor, weight: Tensor, eps: float, inner_weight: Tensor | None
) -> tuple[Tensor, Tensor]:
    if on_triton(x):
        from tandem.engine.kernels.triton.norms import add_rms_norm as kernel

        total = x.clone()
        return kernel(delta, total, weight, eps, inner_weight=inner_weight), total
    total = x + (delta if inner_weight is None else reference.rms_norm(delta, inner_weight, eps).to(x.dtype))
    return reference.rms_norm(total, weight, eps).to(x.dtype), total


def _fake_codes(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x, dtype=torch.int8), x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)


@torch.library.custom_op("tandem::rms_norm", mutates_args=())
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Over the last dimension. weight: float32; where a stored w means 1 + w, the 1 is already added."""
    return _norm(x, weight, eps)


@rms_norm.register_fake
def _(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("tandem::rms_norm_quantized", mutates_args=())
def rms_norm_quantized(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """`rms_norm`, rounded by token: int8 [T, H] and float32 scales [T, 1]."""
    return quantize_tokens(_norm(x, weight, eps))


@rms_norm_quantized.register_fake
def _(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return _fake_codes(x)


@torch.library.custom_op("tandem::add_rms_norm", mutates_args=())
def add_rms_norm(
    x: Tensor, delta: Tensor, weight: Tensor, eps: float, inner_weight: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """sum = x + delta, [T, H] each; returns (norm of the sum, the sum). With `inner_weight`, delta is normed first."""
    return _add_norm(x, delta, weight, eps, inner_weight)


@add_rms_norm.register_fake
def _(
    x: Tensor, delta: Tensor, weight: Tensor, eps: float, inner_weight: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x)


@torch.library.custom_op("tandem::add_rms_norm_quantized", mutates_args=())
def add_rms_norm_quantized(
    x: Tensor, delta: Tensor, weight: Tensor, eps: float, inner_weight: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """`add_rms_norm`, its norm rounded by token: (int8 [T, H], float32 scales [T, 1], the sum)."""
    normed, total = _add_norm(x, delta, weight, eps, inner_weight)
    return (*quantize_tokens(normed), total)


@add_rms_norm_quantized.register_fake
def _(
    x: Tensor, delta: Tensor, weight: Tensor, eps: float, inner_weight: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    return (*_fake_codes(x), torch.empty_like(x))
