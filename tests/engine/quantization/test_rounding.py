"""Rounding: within half a step, better when searched, and in scales that two bytes hold."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor

from tandem.engine.quantization.fp8 import round_to_fp8
from tandem.engine.quantization.gptq import round_compensating
from tandem.engine.quantization.matching import matched, stacked
from tandem.engine.quantization.matrix import QuantizedMatrix
from tandem.engine.quantization.rounding import round_matrix


def weights(rows: int = 24, inputs: int = 128, seed: int = 0) -> Tensor:
    return torch.randn(rows, inputs, generator=torch.Generator().manual_seed(seed)) * 0.05 + 0.01


def rounded(
    w: Tensor, kind: Literal["int8", "int4"], group: int, *, symmetric: bool, search: bool = False
) -> QuantizedMatrix:
    return round_matrix(w, kind, group, symmetric=symmetric, activations="int8_group", search=search)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("kind", "group"), [("int8", 128), ("int8", 32), ("int4", 32), ("int4", 64)])
def test_errors_stay_within_half_a_step(kind: Literal["int8", "int4"], group: int, symmetric: bool) -> None:
    w = weights()
    matrix = rounded(w, kind, group, symmetric=symmetric)
    assert matrix.group_size == group
    assert (matrix.offset is None) == symmetric
    assert int(matrix.codes.max()) < 1 << matrix.bits
    step = matrix.scale.repeat_interleave(group, 1)
    # Scales rounded to float16 reach the outermost weight only nearly: 2⁻¹¹ of half the range.
    assert bool(((matrix.dequantize() - w).abs() <= step * (0.5 + 0.08)).all())


@pytest.mark.parametrize("symmetric", [True, False])
def test_a_search_lowers_the_error(symmetric: bool) -> None:
    w = weights()
    plain, searched = (rounded(w, "int4", 64, symmetric=symmetric, search=s).dequantize() for s in (False, True))
    assert float((searched - w).square().sum()) < 0.93 * float((plain - w).square().sum())


def test_importance_protects_what_counts() -> None:
    w, importance = weights(), torch.full((128,), 1e-3)
    importance[::8] = 1.0
    options = {"symmetric": False, "activations": "int8_group"}
    plain = round_matrix(w, "int4", 64, **options).dequantize()  # type: ignore[arg-type]
    weighed = round_matrix(w, "int4", 64, **options, importance=importance).dequantize()  # type: ignore[arg-type]
    assert float((weighed - w)[:, ::8].norm()) < 0.9 * float((plain - w)[:, ::8].norm())


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_zero_tiny_and_constant_rows_survive(kind: Literal["int8", "int4"]) -> None:
    w = torch.zeros(4, 64)
    w[1], w[2], w[3] = 1e-9, 0.3, -0.3
    for symmetric in (True, False):
        back = rounded(w, kind, 32, symmetric=symmetric, search=True).dequantize()
        assert bool(back.isfinite().all())
        torch.testing.assert_close(back, w, atol=1e-3, rtol=1e-3)


def test_scales_fit_into_float16() -> None:
    matrix = rounded(weights(), "int4", 32, symmetric=False, search=True)
    assert matrix.offset is not None
    for values in (matrix.scale, matrix.offset):
        assert torch.equal(values.half().float(), values)


def test_fp8_takes_each_rows_largest_to_the_top() -> None:
    w = weights()
    matrix = round_to_fp8(w)
    assert torch.equal(matrix.codes.float().abs().amax(1), torch.full((24,), 448.0))
    assert bool(((matrix.dequantize() - w).abs() <= w.abs() / 16 + matrix.scale * 2**-9).all())


def test_compensation_lowers_the_error_of_the_product() -> None:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(512, 32, generator=generator) @ torch.randn(32, 128, generator=generator)
    w, gram = weights(), inputs.T @ inputs / 512
    plain = rounded(w, "int4", 64, symmetric=False, search=True)
    better = round_compensating(w, "int4", 64, gram, symmetric=False, activations="int8_group")
    assert better.group_size == 64
    errors = [float((inputs @ (m.dequantize() - w).T).norm()) for m in (plain, better)]
    assert errors[1] < 0.5 * errors[0]


def test_matching_changes_no_weight() -> None:
    w = weights()
    mixed = [
        rounded(w, "int4", 64, symmetric=False),
        rounded(w, "int8", 32, symmetric=True),
        rounded(w, "int4", 128, symmetric=True),
    ]
    same = matched(mixed)
    assert {(m.kind, m.group_size, m.offset is None) for m in same} == {("int8", 32, False)}
    for before, after in zip(mixed, same, strict=True):
        torch.testing.assert_close(after.dequantize(), before.dequantize(), rtol=0, atol=1e-6)
    assert stacked(same).shape == (72, 128)
