"""Norms and gates against `kernels/reference.py`, and their int8 forms against theirs in floats."""

from __future__ import annotations

import pytest
import torch

from tandem.engine.kernels import ops, reference

X = torch.randn((5, 64), generator=torch.Generator().manual_seed(1))
DELTA = torch.randn((5, 64), generator=torch.Generator().manual_seed(2))
WEIGHT = torch.rand(64, generator=torch.Generator().manual_seed(3)) + 0.5
INNER = torch.rand(64, generator=torch.Generator().manual_seed(4)) + 0.5
EPS = 1e-5


def test_rms_norm() -> None:
    assert torch.equal(ops.rms_norm(X, WEIGHT, EPS), reference.rms_norm(X, WEIGHT, EPS))


def test_bfloat16_is_rounded_before_and_after_the_weight() -> None:
    x = X.bfloat16()
    plain = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + EPS)
    assert torch.equal(ops.rms_norm(x, WEIGHT, EPS), (plain.bfloat16() * WEIGHT).bfloat16())


def test_the_sum_and_its_norm() -> None:
    normed, total = ops.add_rms_norm(X, DELTA, WEIGHT, EPS)
    assert torch.equal(total, X + DELTA)
    assert torch.equal(normed, reference.rms_norm(X + DELTA, WEIGHT, EPS))


def test_what_is_added_is_normed_first() -> None:
    normed, total = ops.add_rms_norm(X, DELTA, WEIGHT, EPS, INNER)
    assert torch.equal(total, X + reference.rms_norm(DELTA, INNER, EPS))
    assert torch.equal(normed, reference.rms_norm(total, WEIGHT, EPS))


@pytest.mark.parametrize("inner", [None, INNER])
def test_quantised_norms_round_the_plain_ones(inner: torch.Tensor | None) -> None:
    codes, scale, total = ops.add_rms_norm_quantized(X, DELTA, WEIGHT, EPS, inner)
    normed, wanted_total = ops.add_rms_norm(X, DELTA, WEIGHT, EPS, inner)
    wanted_codes, wanted_scale = ops.quantize_tokens(normed)
    assert torch.equal(codes, wanted_codes)
    assert torch.equal(scale, wanted_scale)
    assert torch.equal(total, wanted_total)
    alone = ops.rms_norm_quantized(X, WEIGHT, EPS)
    assert torch.equal(alone[0], ops.quantize_tokens(ops.rms_norm(X, WEIGHT, EPS))[0])


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_the_first_half_gates_the_second(activation: str) -> None:
    both = torch.cat([X, DELTA], dim=1)
    activate = reference.silu_mul if activation == "silu" else reference.gelu_tanh_mul
    got = ops.gate(both, activation)
    assert torch.equal(got, activate(X, DELTA))
    codes, scale = ops.gate_quantized(both, activation)
    assert torch.equal(codes, ops.quantize_tokens(got)[0])
    assert torch.allclose(codes * scale, got, atol=float(scale.max()) / 2 + 1e-6)
