"""act(gate) · up over the product that makes both side by side; and the same rounded to int8 for the product behind."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from tandem.engine.kernels import reference
from tandem.engine.kernels.ops.activations import quantize_tokens
from tandem.engine.kernels.ops.backend import on_triton
from tandem.engine.models.spec import Activation


def _gated(gate_up: Tensor, activation: str) -> Tensor:
    if on_triton(gate_up):
        from tandem.engine.kernels.triton.activation import gated

        return gated(gate_up, cast(Activation, activation))
    activate = reference.silu_mul if activation == "silu" else reference.gelu_tanh_mul
    return activate(*gate_up.chunk(2, dim=-1))


@torch.library.custom_op("tandem::gate", mutates_args=())
def gate(gate_up: Tensor, activation: str) -> Tensor:
    """[T, 2 · I], gate then up → [T, I]. activation: "silu" or "gelu_tanh"."""
    return _gated(gate_up, activation)


@gate.register_fake
def _(gate_up: Tensor, activation: str) -> Tensor:
    return gate_up.new_empty((gate_up.shape[0], gate_up.shape[1] // 2))


@torch.library.custom_op("tandem::gate_quantized", mutates_args=())
def gate_quantized(gate_up: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """`gate`, rounded by token: int8 [T, I] and float32 scales [T, 1]."""
    return quantize_tokens(_gated(gate_up, activation))


@gate_quantized.register_fake
def _(gate_up: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    rows, both = gate_up.shape
    return gate_up.new_empty((rows, both // 2), dtype=torch.int8), gate_up.new_empty((rows, 1), dtype=torch.float32)
