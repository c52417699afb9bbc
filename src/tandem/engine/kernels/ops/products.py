"""Products with quantised weights: w[n, k] = scale[n, g] · codes[n, k] + offset[n, g], as `QuantizedMatrix` defines."""

from __future__ import annotations

from typing import Literal, cast

import torch
from torch import Tensor
from torch.nn.functional import linear

from tandem.engine.kernels.ops.activations import rounded
from tandem.engine.quantization.matrix import QuantizedMatrix


def _matrix(codes: Tensor, scale: Tensor, offset: Tensor | None, kind: str) -> QuantizedMatrix:
    return QuantizedMatrix(codes, scale, offset, cast(Literal["int8", "int4", "fp8"], kind), "float")


def _with_bias(y: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    return (y if bias is None else y + bias.float()).to(dtype)


@torch.library.custom_op("tandem::dequantize", mutates_args=())
def dequantize(codes: Tensor, scale: Tensor, offset: Tensor | None, kind: str, dtype: torch.dtype) -> Tensor:
    """The whole matrix, [N, K] in `dtype`: before fusion, its own step in the graph."""
    return _matrix(codes, scale, offset, kind).dequantize(dtype)


@dequantize.register_fake
def _(codes: Tensor, scale: Tensor, offset: Tensor | None, kind: str, dtype: torch.dtype) -> Tensor:
    return torch.empty_like(codes, dtype=dtype)


@torch.library.custom_op("tandem::quantized_linear", mutates_args=())
def quantized_linear(
    x: Tensor, codes: Tensor, scale: Tensor, offset: Tensor | None, kind: str, activations: str, bias: Tensor | None
) -> Tensor:
    """x [T, K] → [T, N] in x's type; sums in float32."""
    weight = _matrix(codes, scale, offset, kind).dequantize()
    return _with_bias(linear(rounded(x, activations), weight), bias, x.dtype)


@quantized_linear.register_fake
def _(
    x: Tensor, codes: Tensor, scale: Tensor, offset: Tensor | None, kind: str, activations: str, bias: Tensor | None
) -> Tensor:
    return x.new_empty((*x.shape[:-1], codes.shape[0]))


@torch.library.custom_op("tandem::int8_linear", mutates_args=())
def int8_linear(
    x_codes: Tensor,
    x_scale: Tensor,
    codes: Tensor,
    scale: Tensor,
    offset: Tensor | None,
    kind: str,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """`quantized_linear` of inputs that are already int8: codes [T, K] and scales [T, 1] → [T, N] in `dtype`."""
    weight = _matrix(codes, scale, offset, kind).dequantize()
    return _with_bias(linear(x_codes.float(), weight) * x_scale, bias, dtype)


@int8_linear.register_fake
def _(
    x_codes: Tensor,
    x_scale: Tensor,
    codes: Tensor,
    scale: Tensor,
    offset: Tensor | None,
    kind: str,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    return x_codes.new_empty((*x_codes.shape[:-1], codes.shape[0]), dtype=dtype)


@torch.library.custom_op("tandem::quantized_embedding", mutates_args=())
def quantized_embedding(
    token_ids: Tensor, codes: Tensor, scale: Tensor, offset: Tensor | None, kind: str, dtype: torch.dtype
) -> Tensor:
    """Rows of a quantised matrix, int [T] → [T, K] in `dtype`; only those rows are dequantised."""
    own_offset = None if offset is None else offset[token_ids]
    return _matrix(codes[token_ids], scale[token_ids], own_offset, kind).dequantize(dtype)


@quantized_embedding.register_fake
def _(token_ids: Tensor, codes: Tensor, scale: Tensor, offset: Tensor | None, kind: str, dtype: torch.dtype) -> Tensor:
    return codes.new_empty((token_ids.shape[0], codes.shape[1]), dtype=dtype)
