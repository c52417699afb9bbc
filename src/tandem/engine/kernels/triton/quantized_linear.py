"""Products with weights in 8 or 4 bits, from a single token to long prompts: the weights are widened in the product.

Few tokens are a matter of reading the weights fast: small tiles of outputs, and where those are too few for a GPU the
inputs are split, each part leaving sums that a second kernel adds in order. Many tokens are a matter of multiplying.

Tiles come from a short list by the sizes alone. Measuring at run time would pick others on another day, and with them
other last bits of equal steps; the device benchmark measures the list instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tandem.engine.kernels.ops.nibbles import PACKED
from tandem.engine.kernels.triton.attention import PRECISION
from tandem.engine.kernels.triton.language import IS_INTERPRETED, num_processors, power_of_two, tl
from tandem.engine.kernels.triton.quantized_kernels import (
    quantized_embedding_kernel,
    quantized_linear_kernel,
    sum_splits_kernel,
)

MAX_SPLITS = 16
LEAST_TILES_IN_SPLIT = 4
PROGRAMS_BY_PROCESSOR = 2
_BLOCK = 1024
_HALF = {"int8": 128, "int4": 8, PACKED: 8, "fp8": 0}
_DOT = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32, torch.int8: tl.int8}


@dataclass(frozen=True, slots=True)
class Weights:
    """`QuantizedMatrix` as the kernels take it; kind "int4x2" has two codes a byte (`ops/nibbles.py`)."""

    codes: Tensor
    scale: Tensor
    offset: Tensor | None
    kind: str

    @property
    def outputs(self) -> int:
        return self.codes.shape[0]

    @property
    def inputs(self) -> int:
        return self.codes.shape[1] * (2 if self.kind == PACKED else 1)

    @property
    def group(self) -> int:
        return self.inputs // self.scale.shape[1]

    @property
    def bytes(self) -> Tensor:
        return self.codes.view(torch.uint8)


class Tiles(NamedTuple):
    """How one product is divided."""

    rows: int
    outputs: int
    inputs: int
    splits: int
    warps: int
    stages: int


SMALL, MEDIUM, LARGE = Tiles(16, 64, 128, 1, 4, 4), Tiles(64, 64, 128, 1, 4, 3), Tiles(128, 128, 64, 1, 8, 3)
WIDE = Tiles(16, 64, 32, 1, 4, 3)
"""For float32, which the tensor cores take in three passes and whose tiles are twice as large."""


def choose_tiles(tokens: int, weights: Weights, *, is_wide: bool, processors: int) -> Tiles:
    """By sizes alone."""
    tiles = WIDE if is_wide else SMALL if tokens <= 16 else MEDIUM if tokens <= 64 else LARGE
    least = 64 if weights.kind == PACKED else 32
    inputs = min(tiles.inputs, max(least, weights.group) if weights.group == weights.inputs else weights.group)
    tiles = tiles._replace(inputs=power_of_two(inputs))
    programs = -(-tokens // tiles.rows) * -(-weights.outputs // tiles.outputs)
    wanted = -(-PROGRAMS_BY_PROCESSOR * processors // programs)
    most = -(-weights.inputs // tiles.inputs) // LEAST_TILES_IN_SPLIT
    return tiles._replace(splits=max(1, min(wanted, most, MAX_SPLITS)))


def quantized_linear(
    x: Tensor,
    weights: Weights,
    bias: Tensor | None = None,
    *,
    x_scale: Tensor | None = None,
    dtype: torch.dtype | None = None,
    tiles: Tiles | None = None,
) -> Tensor:
    """[T, K] → [T, N] in `dtype` (default: x's). int8 inputs come with `x_scale`, float32 [T] or [T, 1].

    `tiles` overrides the choice by size.
    """
    assert x.shape[1] == weights.inputs
    x = x.contiguous()
    output = torch.empty((len(x), weights.outputs), dtype=dtype or x.dtype, device=x.device)
    if not len(x):
        return output
    is_wide = x.dtype == torch.float32
    if tiles is None:
        tiles = choose_tiles(len(x), weights, is_wide=is_wide, processors=num_processors(x.device))
    partial = output
    if tiles.splits > 1:
        partial = torch.empty((tiles.splits, *output.shape), device=x.device)
    dot, total = _types(x, weights, tiles)
    quantized_linear_kernel[(-(-len(x) // tiles.rows), -(-weights.outputs // tiles.outputs), tiles.splits)](
        output,
        partial,
        x,
        weights.scale if x_scale is None else x_scale,
        weights.bytes,
        weights.scale,
        weights.scale if weights.offset is None else weights.offset,
        weights.scale if bias is None else bias,
        len(x),
        N=weights.outputs,
        K=weights.inputs,
        GROUP=weights.group,
        HALF=_HALF[weights.kind],
        IS_FP8=weights.kind == "fp8",
        IS_PACKED=weights.kind == PACKED,
        HAS_OFFSET=weights.offset is not None,
        HAS_BIAS=bias is not None,
        HAS_X_SCALE=x_scale is not None,
        NUM_SPLITS=tiles.splits,
        M=tiles.rows,
        BLOCK_N=tiles.outputs,
        BLOCK_K=tiles.inputs,
        DOT=dot,
        SUM=total,
        PRECISION=PRECISION,
        num_warps=tiles.warps,
        num_stages=tiles.stages,
    )
    if tiles.splits > 1:
        _add_splits(output, partial, bias)
    return output


def _types(x: Tensor, weights: Weights, tiles: Tiles) -> tuple[object, object]:
    """What is multiplied and what is summed. int8 with int8 is multiplied in integers where the tensor cores' tiles
    (32 inputs) fit; else in bfloat16, which holds either exactly."""
    width = tiles.inputs // 2 if weights.kind == PACKED else tiles.inputs
    if x.dtype == torch.int8 and weights.kind != "fp8" and width >= 32:
        return tl.int8, tl.int32
    dtype = torch.bfloat16 if x.dtype == torch.int8 else x.dtype
    # The interpreter multiplies bfloat16 as integers.
    return (tl.float32 if IS_INTERPRETED and dtype == torch.bfloat16 else _DOT[dtype]), tl.float32


def _add_splits(output: Tensor, partial: Tensor, bias: Tensor | None) -> None:
    count = output.numel()
    sum_splits_kernel[(-(-count // _BLOCK),)](
        output,
        partial,
        partial if bias is None else bias,
        count,
        N=output.shape[1],
        HAS_BIAS=bias is not None,
        NUM_SPLITS=len(partial),
        BLOCK=_BLOCK,
    )


def quantized_embedding(token_ids: Tensor, weights: Weights, dtype: torch.dtype) -> Tensor:
    """Rows of the matrix, ints [T] → [T, K]."""
    output = torch.empty((len(token_ids), weights.inputs), dtype=dtype, device=token_ids.device)
    if not len(token_ids):
        return output
    block = min(_BLOCK, power_of_two(weights.inputs))
    quantized_embedding_kernel[(len(token_ids), -(-weights.inputs // block))](
        output,
        token_ids,
        weights.bytes,
        weights.scale,
        weights.scale if weights.offset is None else weights.offset,
        K=weights.inputs,
        GROUP=weights.group,
        HALF=_HALF[weights.kind],
        IS_FP8=weights.kind == "fp8",
        IS_PACKED=weights.kind == PACKED,
        HAS_OFFSET=weights.offset is not None,
        BLOCK=block,
    )
    return output
