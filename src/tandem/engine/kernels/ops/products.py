"""Products with quantised weights: w[n, k] = scale[n, g] · codes[n, k] + offset[n, g], as `QuantizedMatrix` defines.

Beside its kinds there is "int4x2", what a GPU reads: codes of 4 bits, two a byte (`nibbles.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, cast

import torch
from torch import Tensor
from torch.nn.functional import linear

from tandem.engine.kernels.ops.activations import quantize_tokens, rounded
from tandem.engine.kernels.ops.backend import on_triton
from tandem.engine.kernels.ops.nibbles import PACKED, unpack_nibbles
from tandem.engine.quantization.matrix import QuantizedMatrix

if TYPE_CHECKING:
    from tandem.engine.kernels.triton.quantized_linear import Weights


def _matrix(codes: Tensor, scale: Tensor, offset: Tensor | None, kind: str) -> QuantizedMatrix:
    if kind == PACKED:
        codes, kind = unpack_nibbles(codes), "int4"
    return QuantizedMatrix(codes, scale, offset, cast(Literal["int8", "int4", "fp8"], kind), "float")


def _kernel_weights(codes: Tensor, scale: Tensor, offset: Tensor | None, kind: str) -> Weights:
    from tandem.engine.kernels.triton.quantized_linear import Weights

    return Weights(codes, scale, offset, kind)


def _inputs(codes: Tensor, kind: str) -> int:
    """K."""
    return codes.shape[1] * (2 if kind == PACKED else 1)


def _with_bias(y: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    return (y if bias is None else y + bias.float()).to(dtype)


@torch.library.custom_op("tandem::dequantize", mutates_args=())
def dequantize(codes: Tensor, scale: Tensor, offset: Tensor | None, kind: str, dtype: torch.dtype) -> Tensor:
    """The whole matrix, [N, K] in `dtype`: before fusion, its own step in the graph."""
    return _matrix(codes, scale, offset, kind).dequantize(dtype)


@dequantize.register_fake
def _(codes: Tensor, scale: Tensor, offset: Tensor | None, kind: str, dtype: torch.dtype) -> Tensor:
    return codes.new_empty((codes.shape[0], _inputs(codes, kind)), dtype=dtype)


@torch.library.custom_op("tandem::quantized_linear", mutates_args=())
def quantized_linear(
    x: Tensor, codes: Tensor, scale: Tensor, offset: Tensor | None, kind: str, activations: str, bias: Tensor | None
) -> Tensor:
    """x [T, K] → [T, N] in x's type; sums in float32."""
    if on_triton(x):
        return _linear_kernel(x, _kernel_weights(codes, scale, offset, kind), activations, bias)
    weight = _matrix(codes, scale, offset, kind).dequantize()
    return _with_bias(linear(rounded(x, activations), weight), bias, x.dtype)


def _linear_kernel(x: Tensor, weights: Weights, activations: str, bias: Tensor | None) -> Tensor:
    from tandem.engine.kernels.triton.quantized_linear import quantized_linear as kernel

    if activations == "int8_token":
        codes, scale = quantize_tokens(x)
        return kernel(codes, weights, bias, x_scale=scale, dtype=x.dtype)
    if activations == "int8_group":  # right, and no faster than float32: builds for GPUs leave these inputs as they are
        return kernel(rounded(x, activations), weights, bias, dtype=x.dtype)
    return kernel(x, weights, bias)


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
    if on_triton(x_codes):
        from tandem.engine.kernels.triton.quantized_linear import quantized_linear as kernel

        return kernel(x_codes, _kernel_weights(codes, scale, offset, kind), bias, x_scale=x_scale, dtype=dtype)
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
    if on_triton(codes):
        from tandem.engine.kernels.triton.quantized_linear import quantized_embedding as kernel

        return kernel(token_ids, _kernel_weights(codes, scale, offset, kind), dtype)
    own_offset = None if offset is None else offset[token_ids]
    return _matrix(codes[token_ids], scale[token_ids], own_offset, kind).dequantize(dtype)


@quantized_embedding.register_fake
def _(token_ids: Tensor, codes: Tensor, scale: Tensor, offset: Tensor | None, kind: str, dtype: torch.dtype) -> Tensor:
    return codes.new_empty((token_ids.shape[0], _inputs(codes, kind)), dtype=dtype)
