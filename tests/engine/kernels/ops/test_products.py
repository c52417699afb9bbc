"""Quantised products against the formula that defines them, and the rounding of inputs to int8, exactly."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor

from tandem.engine.kernels import ops
from tandem.engine.quantization.matrix import QuantizedMatrix

Kind = Literal["int8", "int4", "fp8"]


def random_matrix(kind: Kind, group: int, *, with_offset: bool, shape: tuple[int, int] = (6, 64)) -> QuantizedMatrix:
    generator = torch.Generator().manual_seed(3)
    scale = torch.rand((shape[0], shape[1] // group), generator=generator) / 8 + 0.01
    offset = torch.randn(scale.shape, generator=generator) if with_offset else None
    if kind == "fp8":
        codes = torch.randn(shape, generator=generator).to(torch.float8_e4m3fn)
    else:
        codes = torch.randint(0, 16 if kind == "int4" else 256, shape, generator=generator, dtype=torch.uint8)
    return QuantizedMatrix(codes, scale, offset, kind, "float")


def inputs(rows: int = 5, columns: int = 64, seed: int = 4) -> Tensor:
    return torch.randn((rows, columns), generator=torch.Generator().manual_seed(seed))


MATRICES = [
    pytest.param(("int8", 64, False), id="int8 by channel"),
    pytest.param(("int8", 32, True), id="int8 with offsets"),
    pytest.param(("int4", 32, False), id="int4 symmetric"),
    pytest.param(("int4", 16, True), id="int4 with offsets"),
    pytest.param(("fp8", 64, False), id="fp8"),
]


@pytest.fixture(params=MATRICES)
def matrix(request: pytest.FixtureRequest) -> QuantizedMatrix:
    kind, group, with_offset = request.param
    return random_matrix(kind, group, with_offset=with_offset)


def test_dequantize_gives_the_matrix(matrix: QuantizedMatrix) -> None:
    got = ops.dequantize(matrix.codes, matrix.scale, matrix.offset, matrix.kind, torch.bfloat16)
    assert torch.equal(got, matrix.dequantize(torch.bfloat16))


def test_the_product_is_that_of_the_dequantised_weights(matrix: QuantizedMatrix) -> None:
    x, bias = inputs(), torch.arange(6.0)
    got = ops.quantized_linear(x, matrix.codes, matrix.scale, matrix.offset, matrix.kind, "float", bias)
    assert torch.allclose(got, x.double().matmul(matrix.dequantize().double().T).float() + bias, atol=1e-4)


def test_the_embedding_takes_rows_of_the_dequantised_weights(matrix: QuantizedMatrix) -> None:
    tokens = torch.tensor([5, 0, 5], dtype=torch.int32)
    got = ops.quantized_embedding(tokens, matrix.codes, matrix.scale, matrix.offset, matrix.kind, torch.float32)
    assert torch.equal(got, matrix.dequantize()[tokens])


def test_tokens_round_to_the_nearest_and_ties_to_even() -> None:
    x = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -127.0], [0.0] * 7, [254.0, 1.0, 3.0, 5.0, 0.0, 0.0, 0.0]])
    codes, scale = ops.quantize_tokens(x)
    assert codes.tolist() == [[127, 0, 2, 2, 0, -2, -127], [0] * 7, [127, 0, 2, 2, 0, 0, 0]]
    assert scale.tolist() == [[1.0], [0.0], [2.0]]
    assert codes.dtype == torch.int8


def test_groups_of_32_inputs_have_their_own_scales() -> None:
    x = torch.cat([torch.full((1, 32), 127.0), torch.full((1, 32), 1.27)], dim=1)
    codes, scale = ops.quantize_groups(x)
    assert torch.equal(codes, torch.full((1, 2, 32), 127, dtype=torch.int8))
    assert torch.allclose(scale, torch.tensor([[[1.0], [0.01]]]))


@pytest.mark.parametrize("activations", ["int8_token", "int8_group"])
def test_products_see_rounded_inputs(activations: str) -> None:
    matrix, x = random_matrix("int8", 64, with_offset=False), inputs()
    rounded = ops.round_activations(x, activations)
    assert not torch.equal(rounded, x)
    assert (rounded - x).abs().max() <= x.abs().max() / 127 / 2 + 1e-6
    got = ops.quantized_linear(x, matrix.codes, matrix.scale, None, "int8", activations, None)
    assert torch.allclose(got, rounded @ matrix.dequantize().T, atol=1e-4)


def test_rounding_to_nothing_is_a_copy() -> None:
    x = inputs()
    got = ops.round_activations(x, "float")
    assert torch.equal(got, x)
    assert got.data_ptr() != x.data_ptr()


@pytest.mark.parametrize("with_offset", [False, True])
def test_inputs_already_in_int8_give_the_same(with_offset: bool) -> None:
    matrix, x = random_matrix("int8", 32, with_offset=with_offset), inputs()
    weight = (matrix.codes, matrix.scale, matrix.offset, "int8")
    codes, scale = ops.quantize_tokens(x)
    got = ops.int8_linear(codes, scale, *weight, None, torch.float32)
    assert torch.allclose(got, ops.quantized_linear(x, *weight, "int8_token", None), atol=1e-4)
