"""Brings matrices whose rows will lie in one product (q, k and v; gate and up) to one form, without loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tandem.engine.quantization.matrix import QuantizedMatrix


def matched(matrices: Sequence[QuantizedMatrix]) -> list[QuantizedMatrix]:
    """All of one kind, group size and activations, all with offsets or none; each stands for the weights it stood for.

    4 bits among 8 become 8 with the same codes; larger groups are cut into smaller ones with the same scale.
    """
    kinds = {matrix.kind for matrix in matrices}
    assert len(kinds) == 1 or "fp8" not in kinds, kinds
    group_size = min(matrix.group_size for matrix in matrices)
    activations = "int8_group" if len({m.activations for m in matrices}) > 1 else matrices[0].activations
    result = [replace(_regrouped(m, group_size), activations=activations) for m in matrices]
    if len(kinds) > 1:
        result = [widened(m) for m in result]
    if any(m.offset is not None for m in result):
        result = [replace(m, offset=offset_of(m)) for m in result]
    return result


def widened(matrix: QuantizedMatrix) -> QuantizedMatrix:
    """4 bits as 8, with the same scales."""
    if matrix.kind != "int4":
        return matrix
    if matrix.offset is not None:
        return replace(matrix, kind="int8")
    return replace(matrix, codes=matrix.codes + (128 - 8), kind="int8")


def offset_of(matrix: QuantizedMatrix) -> Tensor:
    """The offset, also where a symmetric matrix leaves it out."""
    return matrix.scale * -float(1 << (matrix.bits - 1)) if matrix.offset is None else matrix.offset


def stacked(matrices: Sequence[QuantizedMatrix]) -> QuantizedMatrix:
    """Rows below one another. The matrices match."""
    offsets = [m.offset for m in matrices if m.offset is not None]
    return replace(
        matrices[0],
        codes=torch.cat([m.codes for m in matrices]),
        scale=torch.cat([m.scale for m in matrices]),
        offset=torch.cat(offsets) if offsets else None,
    )


def _regrouped(matrix: QuantizedMatrix, group_size: int) -> QuantizedMatrix:
    times = matrix.group_size // group_size
    if times == 1:
        return matrix
    offset = None if matrix.offset is None else matrix.offset.repeat_interleave(times, 1)
    return replace(matrix, scale=matrix.scale.repeat_interleave(times, 1), offset=offset)
