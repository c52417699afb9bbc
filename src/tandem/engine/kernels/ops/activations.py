"""The inputs of integer products, rounded to int8: one scale a token, or one for each 32 inputs of a token.

scale = max|x| / 127, codes = x / scale rounded to the nearest, ties to even. Inputs that are all zero get scale 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

ROUND_GROUP = 32
"""Inputs that share a scale under "int8_group"."""


def quantize_tokens(x: Tensor) -> tuple[Tensor, Tensor]:
    """[..., K] → int8 codes [..., K] and float32 scales [..., 1]; x ≈ codes · scale."""
    wide = x.float()
    scale = wide.abs().amax(-1, keepdim=True) / 127
    codes = torch.where(scale > 0, wide / scale, 0.0).round().clamp(-127, 127)
    return codes.to(torch.int8), scale


def quantize_groups(x: Tensor, group: int = ROUND_GROUP) -> tuple[Tensor, Tensor]:
    """[T, K] → int8 codes [T, K / group, group] and float32 scales [T, K / group, 1]."""
    return quantize_tokens(x.reshape(len(x), -1, group))


def rounded(x: Tensor, activations: str) -> Tensor:
    """What a product with these activations multiplies, as float32 [T, K]."""
    if activations == "float":
        return x.float()
    if activations == "int8_token":
        codes, scale = quantize_tokens(x)
        return codes * scale
    assert activations == "int8_group", activations
    codes, scale = quantize_groups(x)
    return (codes * scale).flatten(-2)


@torch.library.custom_op("tandem::round_activations", mutates_args=())
def round_activations(x: Tensor, activations: str) -> Tensor:
    """x [T, K] as the product behind it will see it, in x's type: before fusion, its own step in the graph."""
    return rounded(x, activations).to(x.dtype, copy=True)


@round_activations.register_fake
def _(x: Tensor, activations: str) -> Tensor:
    return torch.empty_like(x)
