"""Products with quantised weights against the operators' plain torch forms: kinds, groups, sizes off the tiles."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tandem.engine.kernels.ops.activations import quantize_tokens, rounded
from tandem.engine.kernels.ops.nibbles import PACKED, pack_nibbles, unpack_nibbles
from tandem.engine.kernels.triton.quantized_linear import (
    LARGE,
    MAX_SPLITS,
    MEDIUM,
    SMALL,
    Tiles,
    Weights,
    choose_tiles,
    quantized_embedding,
    quantized_linear,
)
from tandem.engine.quantization.matrix import QuantizedMatrix


def make(kind: str, outputs: int, inputs: int, group: int, *, offset: bool, device: torch.device) -> QuantizedMatrix:
    generator = torch.Generator().manual_seed(outputs + inputs)
    if kind == "fp8":
        codes = torch.randn(outputs, inputs, generator=generator).mul(20).to(torch.float8_e4m3fn)
    else:
        codes = torch.randint(0, 16 if kind == "int4" else 256, (outputs, inputs), generator=generator).byte()
    scale = torch.rand(outputs, inputs // group, generator=generator) * 0.01 + 0.001
    shift = -scale * torch.randint(0, 15, scale.shape, generator=generator) if offset else None
    there = None if shift is None else shift.to(device)
    return QuantizedMatrix(codes.to(device), scale.to(device), there, kind, "float")  # type: ignore[arg-type]


def weights_of(matrix: QuantizedMatrix, *, packed: bool = False) -> Weights:
    codes = pack_nibbles(matrix.codes) if packed else matrix.codes
    return Weights(codes, matrix.scale, matrix.offset, PACKED if packed else matrix.kind)


def inputs_of(tokens: int, inputs: int, device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(tokens, inputs, generator=torch.Generator().manual_seed(tokens)).to(dtype).to(device)


def error(got: Tensor, expected: Tensor) -> float:
    return float((got.float() - expected).abs().max() / expected.abs().max())


MATRICES: list[tuple[str, int, bool, bool]] = [
    ("int8", 0, False, False),
    ("int8", 64, False, False),
    ("int8", 32, True, False),
    ("int4", 64, True, False),
    ("int4", 32, True, True),
    ("int4", 128, False, True),
    ("fp8", 0, False, False),
]


@pytest.mark.parametrize(("kind", "group", "offset", "packed"), MATRICES)
@pytest.mark.parametrize("tokens", [1, 19])
def test_weights_are_widened(
    kind: str, group: int, offset: bool, packed: bool, tokens: int, device: torch.device
) -> None:
    matrix = make(kind, 70, 256, group or 256, offset=offset, device=device)
    x, bias = inputs_of(tokens, 256, device), inputs_of(1, 70, device)[0]
    got = quantized_linear(x, weights_of(matrix, packed=packed), bias)
    assert error(got, x @ matrix.dequantize().T + bias) < 1e-5


@pytest.mark.parametrize(("kind", "group", "offset", "packed"), MATRICES[:6])
def test_int8_inputs_with_a_scale_a_token(
    kind: str, group: int, offset: bool, packed: bool, device: torch.device
) -> None:
    matrix = make(kind, 70, 256, group or 256, offset=offset, device=device)
    codes, scale = quantize_tokens(inputs_of(5, 256, device))
    got = quantized_linear(codes, weights_of(matrix, packed=packed), x_scale=scale, dtype=torch.float32)
    assert error(got, (codes * scale) @ matrix.dequantize().T) < 1e-5


@pytest.mark.parametrize("splits", [1, 2, 3, 8])
@pytest.mark.parametrize("kind", ["int8", PACKED])
def test_splits_add_up(kind: str, splits: int, device: torch.device) -> None:
    matrix = make("int4" if kind == PACKED else kind, 33, 320, 64, offset=True, device=device)
    x, bias = inputs_of(3, 320, device), inputs_of(1, 33, device)[0]
    tiles = Tiles(16, 64, 64, splits, 4, 2)
    got = quantized_linear(x, weights_of(matrix, packed=kind == PACKED), bias, tiles=tiles)
    assert error(got, x @ matrix.dequantize().T + bias) < 1e-5


@pytest.mark.parametrize("inputs", [60, 96])
@pytest.mark.parametrize("tokens", [15, 16, 17, 64, 65])
def test_sizes_beside_the_tiles(inputs: int, tokens: int, device: torch.device) -> None:
    matrix = make("int8", 65, inputs, inputs, offset=False, device=device)
    x = inputs_of(tokens, inputs, device, torch.bfloat16)
    got = quantized_linear(x, weights_of(matrix))
    assert got.dtype == torch.bfloat16
    assert error(got, x.float() @ matrix.dequantize().T) < 0.01


@pytest.mark.parametrize(("kind", "group", "offset", "packed"), MATRICES)
def test_embeddings(kind: str, group: int, offset: bool, packed: bool, device: torch.device) -> None:
    matrix = make(kind, 9, 256, group or 256, offset=offset, device=device)
    ids = torch.tensor([8, 0, 3, 3], dtype=torch.int32, device=device)
    got = quantized_embedding(ids, weights_of(matrix, packed=packed), torch.float32)
    assert error(got, matrix.dequantize()[ids.long()]) < 1e-6


@pytest.mark.parametrize("activations", ["float", "int8_token", "int8_group"])
def test_the_operator_takes_the_kernel(activations: str, device: torch.device, monkeypatch: Any) -> None:
    from tandem.engine.kernels import ops

    matrix = make("int8", 40, 64, 32, offset=False, device=device)
    x = inputs_of(3, 64, device)
    expected = rounded(x, activations) @ matrix.dequantize().T
    monkeypatch.setattr(QuantizedMatrix, "dequantize", lambda *_: pytest.fail("the plain form ran"))
    arguments = (matrix.codes, matrix.scale, None, "int8")
    assert error(ops.quantized_linear(x, *arguments, activations, None), expected) < 1e-5
    codes, scale = quantize_tokens(x)
    assert ops.int8_linear(codes, scale, *arguments, None, torch.float32).shape == (3, 40)
    assert ops.quantized_embedding(torch.tensor([1], device=device), *arguments, torch.float32).shape == (1, 64)


def test_no_tokens_are_no_work(device: torch.device) -> None:
    matrix = weights_of(make("int8", 40, 64, 32, offset=False, device=device))
    assert quantized_linear(inputs_of(0, 64, device), matrix).shape == (0, 40)
    assert quantized_embedding(torch.empty(0, dtype=torch.int32), matrix, torch.float32).shape == (0, 64)


def test_nibbles_come_back(device: torch.device) -> None:
    codes = torch.arange(3 * 64, device=device).view(3, 64).remainder(16).byte()
    packed = pack_nibbles(codes)
    assert packed.shape == (3, 32)
    assert torch.equal(unpack_nibbles(packed), codes)


def test_tiles_depend_on_sizes_alone() -> None:
    codes = torch.empty(4096, 4096, dtype=torch.uint8, device="meta")
    weights = Weights(codes, torch.empty(4096, 32, device="meta"), None, "int8")
    few = choose_tiles(1, weights, is_wide=False, processors=132)
    assert few == choose_tiles(16, weights, is_wide=False, processors=132)
    assert few._replace(splits=1) == SMALL
    assert 1 < few.splits <= MAX_SPLITS
    assert choose_tiles(17, weights, is_wide=False, processors=132).rows == MEDIUM.rows
    assert choose_tiles(65, weights, is_wide=False, processors=132).rows == LARGE.rows
    assert choose_tiles(4096, weights, is_wide=False, processors=132).splits == 1
