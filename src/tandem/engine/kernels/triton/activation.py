# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# ruff: noqa: N803
"""act(gate) · up over the product that makes both side by side."""

from __future__ import annotations

import torch
from torch import Tensor

from tandem.engine.kernels.triton.language import jit, power_of_two, tl
from tandem.engine.models.spec import Activation

BLOCK = 1024


@jit
def gated_kernel(output, gate_up, SIZE: tl.constexpr, BLOCK: tl.constexpr, IS_SILU: tl.constexpr):
    """Grid (rows, tiles of columns). gate_up: [rows, 2 · SIZE]; output: [rows, SIZE]."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exists = column < SIZE
    gate = tl.load(gate_up + row * 2 * SIZE + column, mask=exists, other=0.0).to(tl.float32)
    up = tl.load(gate_up + (row * 2 + 1) * SIZE + column, mask=exists, other=0.0).to(tl.float32)
    if IS_SILU:
        active = gate / (1.0 + tl.exp(-gate))
    else:
        # gelu, tanh form: (1 + tanh(z)) / 2 = 1 / (1 + exp(-2z)), z = √(2/π) · (x + 0.044715 x³)
        active = gate / (1.0 + tl.exp(-1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)))
    dtype: tl.constexpr = output.dtype.element_ty
    tl.store(output + row * SIZE + column, (active.to(dtype).to(tl.float32) * up).to(dtype), mask=exists)


def gated(gate_up: Tensor, activation: Activation) -> Tensor:
    """[rows, 2 · size] → [rows, size]."""
    rows, both = gate_up.shape
    assert gate_up.is_contiguous()
    output = torch.empty((rows, both // 2), dtype=gate_up.dtype, device=gate_up.device)
    block = min(BLOCK, power_of_two(both // 2))
    gated_kernel[(rows, -(-(both // 2) // block))](
        output, gate_up, SIZE=both // 2, BLOCK=block, IS_SILU=activation == "silu"
    )
    return output
