"""Rounds a matrix to few bits: to the nearest code, with scales that may be searched for. Knows no network.

Scales and offsets of integer kinds are rounded to float16 before the codes are chosen, so that an image that keeps them
in two bytes loses nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from tandem.engine.quantization.matrix import Activations, QuantizedMatrix

IntegerKind = Literal["int8", "int4"]

SHRINKS = tuple(1.0 - 0.05 * step for step in range(10))
"""The parts of a group's range that a search tries: clipping the outermost weights makes the steps finer."""

PIECE_LENGTH = 1 << 21
"""Weights that are rounded at once: the search holds several float32 copies of them."""

_TINIEST, _LARGEST = 2.0**-24, 65504.0


def round_matrix(
    weights: Tensor,
    kind: IntegerKind,
    group_size: int,
    *,
    symmetric: bool,
    activations: Activations,
    search: bool = True,
    importance: Tensor | None = None,
) -> QuantizedMatrix:
    """weights [N, K]. group_size divides K; K itself is one scale a row.

    `search`, for 4 bits: scales are those of least squared error; otherwise they span each group's range.
    `importance` [K]: how much an error in each input counts there (the mean square of what comes in).
    """
    n, k = weights.shape
    assert k % group_size == 0, (k, group_size)
    codes = torch.empty(n, k, dtype=torch.uint8)
    scale = torch.empty(n, k // group_size)
    offset = None if symmetric else torch.empty_like(scale)
    counts = _counts(importance, k, group_size)
    for rows in _pieces(n, k):
        groups = weights[rows].float().view(-1, k // group_size, group_size)
        best = _search(groups, _bits(kind), symmetric, counts, SHRINKS if search and kind == "int4" else (1.0,))
        codes[rows], scale[rows] = best[0].view(-1, k).to(torch.uint8), best[1].squeeze(-1)
        if offset is not None:
            offset[rows] = best[2].squeeze(-1)
    return QuantizedMatrix(codes, scale, offset, kind, activations)


def round_with(weights: Tensor, scale: Tensor, offset: Tensor | None, bits: int) -> Tensor:
    """The nearest codes under given scales (and offsets, None: symmetric), as float. Shapes broadcast."""
    zero = scale * -float(1 << (bits - 1)) if offset is None else offset
    steps = torch.where(scale != 0, (weights - zero) / scale, 0.0)
    return steps.round_().clamp_(0, (1 << bits) - 1)


def to_half(values: Tensor) -> Tensor:
    """As float16 holds them, in float32. What isn't zero stays so."""
    halves = values.clamp(-_LARGEST, _LARGEST).half().float()
    return torch.where((halves == 0) & (values != 0), _TINIEST, halves)


def _bits(kind: IntegerKind) -> int:
    return 4 if kind == "int4" else 8


def _counts(importance: Tensor | None, k: int, group_size: int) -> Tensor | None:
    if importance is None:
        return None
    # A dead input would leave its group's scale to chance; a little of the mean keeps it sensible.
    weighed = importance.float() + 1e-3 * importance.float().mean() + 1e-12
    return weighed.view(1, k // group_size, group_size)


def _pieces(n: int, k: int) -> Iterator[slice]:
    rows = max(1, PIECE_LENGTH // k)
    return (slice(start, min(start + rows, n)) for start in range(0, n, rows))


_Rounded = tuple[Tensor, Tensor, Tensor]
"""Codes [R, G, g] and scales and offsets [R, G, 1], all as float32."""


def _search(groups: Tensor, bits: int, symmetric: bool, counts: Tensor | None, shrinks: tuple[float, ...]) -> _Rounded:
    """Of all candidates, for each group the one whose error is least."""
    best: _Rounded | None = None
    least = torch.empty(0)
    for candidate in _candidates(groups, bits, symmetric, counts, shrinks):
        error = _error(groups, candidate, counts)
        if best is None:
            best, least = candidate, error
            continue
        better = error < least
        best = (
            torch.where(better, candidate[0], best[0]),
            torch.where(better, candidate[1], best[1]),
            torch.where(better, candidate[2], best[2]),
        )
        least = torch.where(better, error, least)
    assert best is not None
    return best


def _candidates(
    groups: Tensor, bits: int, symmetric: bool, counts: Tensor | None, shrinks: tuple[float, ...]
) -> Iterator[_Rounded]:
    """Ranges shrunk more and more; behind each, where there is a search, the line that fits its codes best."""
    for shrink in shrinks:
        for scale, offset in _ranges(groups, bits, symmetric, shrink, both_signs=len(shrinks) > 1):
            first = _rounded(groups, scale, offset, bits, symmetric)
            yield first
            if len(shrinks) > 1:
                fitted = _fit_symmetric(groups, first[0], bits, counts) if symmetric else _fit(groups, first, counts)
                yield _rounded(groups, *fitted, bits, symmetric)


def _ranges(
    groups: Tensor, bits: int, symmetric: bool, shrink: float, *, both_signs: bool
) -> Iterator[tuple[Tensor, Tensor]]:
    half = 1 << (bits - 1)
    if symmetric:
        largest = groups.abs().amax(-1, keepdim=True)
        yield largest * (shrink / (half - 1)), largest
        if both_signs:  # codes reach one step further down than up: the largest weight may take that step
            at = groups.abs().argmax(-1, keepdim=True)
            yield groups.gather(-1, at) * (-shrink / half), largest
        return
    low, high = groups.amin(-1, keepdim=True).clamp(max=0), groups.amax(-1, keepdim=True).clamp(min=0)
    yield (high - low) * (shrink / (2 * half - 1)), low * shrink


def _rounded(groups: Tensor, scale: Tensor, offset: Tensor, bits: int, symmetric: bool) -> _Rounded:
    scale = to_half(scale)
    offset = scale * -float(1 << (bits - 1)) if symmetric else to_half(offset)
    return round_with(groups, scale, offset, bits), scale, offset


def _error(groups: Tensor, rounded: _Rounded, counts: Tensor | None) -> Tensor:
    codes, scale, offset = rounded
    squares = torch.addcmul(offset, codes, scale).sub_(groups).square_()
    return (squares if counts is None else squares.mul_(counts)).sum(-1, keepdim=True)


def _fit_symmetric(groups: Tensor, codes: Tensor, bits: int, counts: Tensor | None) -> tuple[Tensor, Tensor]:
    """Least squares for the scale alone."""
    signed = codes - float(1 << (bits - 1))
    weighed = signed if counts is None else signed * counts
    square = (weighed * signed).sum(-1, keepdim=True)
    scale = (weighed * groups).sum(-1, keepdim=True) / square.clamp(min=1e-30)
    return scale, scale


def _fit(groups: Tensor, rounded: _Rounded, counts: Tensor | None) -> tuple[Tensor, Tensor]:
    """Least squares for scale and offset; the first ones stay where all codes are the same."""
    codes, scale, offset = rounded
    weigh = torch.ones_like(groups[:1]) if counts is None else counts
    total = weigh.sum(-1, keepdim=True)
    mean_code = (codes * weigh).sum(-1, keepdim=True) / total
    mean_weight = (groups * weigh).sum(-1, keepdim=True) / total
    around = (codes - mean_code) * weigh
    variance = (around * codes).sum(-1, keepdim=True)
    fitted = (around * groups).sum(-1, keepdim=True) / variance.clamp(min=1e-30)
    fitted = torch.where(variance > 1e-6 * total, fitted, scale)
    return fitted, torch.where(variance > 1e-6 * total, mean_weight - fitted * mean_code, offset)
