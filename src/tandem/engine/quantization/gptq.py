"""Error compensation: each column's rounding error is made up for in the columns that are rounded after it.

Which columns can stand in for which, the Gram matrix of the inputs says. After Frantar et al., "GPTQ",
https://arxiv.org/abs/2210.17323.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tandem.engine.quantization.matrix import Activations, QuantizedMatrix
from tandem.engine.quantization.rounding import IntegerKind, round_matrix, round_with

DAMPING = 0.01
"""Of the Gram matrix's mean diagonal, added to all of it: calibration has seen few tokens."""


def round_compensating(
    weights: Tensor,
    kind: IntegerKind,
    group_size: int,
    gram: Tensor,
    *,
    symmetric: bool,
    activations: Activations,
    search: bool = True,
) -> QuantizedMatrix:
    """weights [N, K], gram [K, K]. Scales are those of a group's weights when its first column's turn comes."""
    rest = weights.float().clone()
    n, k = rest.shape
    upper = _inverse_factor(gram)
    bits = 4 if kind == "int4" else 8
    codes = torch.empty(n, k, dtype=torch.uint8)
    groups: list[QuantizedMatrix] = []
    # Long groups (a whole row) still pass their errors on in short blocks, each block's all at once.
    block = min(group_size, 128)
    for start in range(0, k, block):
        if start % group_size == 0:
            span = slice(start, start + group_size)
            groups.append(
                round_matrix(
                    rest[:, span],
                    kind,
                    group_size,
                    symmetric=symmetric,
                    activations=activations,
                    search=search,
                    importance=gram.diagonal()[span],
                )
            )
        scale, offset = groups[-1].scale, groups[-1].offset
        stop = min(start + block, k)
        errors = torch.empty(n, stop - start)
        for column in range(start, stop):
            own = rest[:, column : column + 1]
            code = round_with(own, scale, offset, bits)
            codes[:, column] = code.squeeze(1).to(torch.uint8)
            zero = scale * -float(1 << (bits - 1)) if offset is None else offset
            error = (own - (code * scale + zero)) / upper[column, column]
            rest[:, column:stop] -= error * upper[column, column:stop]
            errors[:, column - start : column - start + 1] = error
        rest[:, stop:] -= errors @ upper[start:stop, stop:]
    offsets = [group.offset for group in groups if group.offset is not None]
    scale = torch.cat([group.scale for group in groups], 1)
    return QuantizedMatrix(codes, scale, torch.cat(offsets, 1) if offsets else None, kind, activations)


def _inverse_factor(gram: Tensor) -> Tensor:
    """Upper U with Uᵀ·U = gram⁻¹ (damped): row k says how later columns make up for an error in column k."""
    damped = gram.double()
    mean = damped.diagonal().mean().clamp(min=1e-12)
    damped = damped + torch.eye(len(gram), dtype=torch.float64) * (DAMPING * mean)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    upper: Tensor = torch.linalg.cholesky(inverse, upper=True)
    return upper.float()
