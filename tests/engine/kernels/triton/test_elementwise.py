"""Norms and gated activations against the reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tandem.engine.kernels import reference as ops
from tandem.engine.kernels.triton.activation import gated
from tandem.engine.kernels.triton.norms import add_rms_norm, rms_norm

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def near(got: Tensor, expected: Tensor) -> bool:
    assert got.dtype == expected.dtype
    eps = torch.finfo(got.dtype).eps
    return torch.allclose(got.float(), expected.float(), rtol=4 * eps, atol=4 * eps)


def random(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.randn(shape, generator=generator) * 2).to(dtype).to(device)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden", [8, 96, 577, 2048])
def test_rms_norm(hidden: int, dtype: torch.dtype, device: torch.device) -> None:
    x, weight = (random(*shape, dtype=dtype, device=device) for shape in ((3, hidden), (hidden,)))
    assert near(rms_norm(x, weight, 1e-5), ops.rms_norm(x, weight, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_inner", [False, True])
def test_add_rms_norm(with_inner: bool, dtype: torch.dtype, device: torch.device) -> None:
    x, residual = (random(5, 96, dtype=dtype, device=device) * factor for factor in (1.0, -0.7))
    weight, inner = (random(n, dtype=dtype, device=device)[:96] for n in (96, 97))
    total = residual + (ops.rms_norm(x, inner, 1e-5) if with_inner else x)
    expected = ops.rms_norm(total, weight, 1e-5)
    got = add_rms_norm(x, residual, weight, 1e-5, inner_weight=inner if with_inner else None)
    assert near(residual, total)
    assert near(got, expected) or dtype != torch.float32
    # A residual that rounds the other way moves the norm by a step of its own.
    assert (got.float() - expected.float()).abs().max() < 40 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 96, 1100])
def test_gated_activations(size: int, dtype: torch.dtype, device: torch.device) -> None:
    both = random(3, 2 * size, dtype=dtype, device=device)
    both[0, 0] = -60.0
    gate, up = both.chunk(2, dim=-1)
    assert near(gated(both, "silu"), ops.silu_mul(gate, up))
    assert near(gated(both, "gelu_tanh"), ops.gelu_tanh_mul(gate, up))
