# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# ruff: noqa: N803
"""Choosing tokens from rows of logits on the GPU: the argmax, and the draws that `engine/sampling/draw.py` defines.

A row over the vocabulary is too long for one program, so programs take pieces of it and a second kernel joins theirs.
Sums of weights are in float64, as in draw.py: a draw inverts them, and float32 would move its borders.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tandem.engine.kernels.triton.language import jit, power_of_two, tl

PIECE = 4096
CANDIDATES = 1024
"""Likeliest tokens looked at where a request narrows the choice; what they can't decide is left to the caller."""


@jit
def piece_argmax_kernel(piece_max, piece_ids, logits, V, PIECE: tl.constexpr):
    """Grid (rows, pieces). Largest logit of each piece and the first token that has it."""
    row = tl.program_id(0).to(tl.int64)
    piece = tl.program_id(1)
    token = piece * PIECE + tl.arange(0, PIECE)
    x = tl.load(logits + row * V + token, mask=token < V, other=float("-inf"))
    largest = tl.max(x, 0)
    at = row * tl.num_programs(1) + piece
    tl.store(piece_max + at, largest)
    tl.store(piece_ids + at, tl.min(tl.where((x == largest) & (token < V), token, V), 0))


@jit
def row_argmax_kernel(chosen, row_max, piece_max, piece_ids, V, num_pieces, BLOCK: tl.constexpr):
    """Grid (rows): joins the pieces. Pieces are in the order of tokens, so the first of equal ones has the lower id."""
    row = tl.program_id(0)
    piece = tl.arange(0, BLOCK)
    exists = piece < num_pieces
    x = tl.load(piece_max + row * num_pieces + piece, mask=exists, other=float("-inf"))
    largest = tl.max(x, 0)
    tokens = tl.load(piece_ids + row * num_pieces + piece, mask=exists & (x == largest), other=2147483647)
    # A row of NaN has no largest; its token must still be one.
    tl.store(chosen + row, tl.minimum(tl.min(tokens, 0), V - 1))
    tl.store(row_max + row, largest)


@jit
def piece_weights_kernel(piece_sum, logits, row_max, temperature, V, PIECE: tl.constexpr):
    """Grid (rows, pieces): sum of exp((logit - max) / temperature), float64."""
    row = tl.program_id(0).to(tl.int64)
    piece = tl.program_id(1)
    token = piece * PIECE + tl.arange(0, PIECE)
    x = tl.load(logits + row * V + token, mask=token < V, other=float("-inf"))
    weights = tl.exp((x - tl.load(row_max + row)) / tl.load(temperature + row))
    tl.store(piece_sum + row * tl.num_programs(1) + piece, tl.sum(weights.to(tl.float64), 0))


@jit
def invert_kernel(
    chosen, piece_sum, logits, row_max, temperature, uniforms, V, num_pieces, PIECE: tl.constexpr, BLOCK: tl.constexpr
):
    """Grid (rows): first token whose cumulative share exceeds the row's uniform number; never one of weight zero."""
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, BLOCK)
    sums = tl.load(piece_sum + row * num_pieces + index, mask=index < num_pieces, other=0.0)
    target = tl.load(uniforms + row) * tl.sum(sums, 0)
    last = tl.max(tl.where(sums > 0.0, index, 0), 0)
    piece = tl.minimum(tl.sum((tl.cumsum(sums, 0) <= target).to(tl.int32), 0), last)
    before = tl.sum(tl.where(index < piece, sums, 0.0), 0)

    inside = tl.arange(0, PIECE)
    token = piece * PIECE + inside
    x = tl.load(logits + row * V + token, mask=token < V, other=float("-inf"))
    weights = tl.exp((x - tl.load(row_max + row)) / tl.load(temperature + row))
    reached = tl.cumsum(weights.to(tl.float64), 0) + before
    last = tl.max(tl.where(weights > 0.0, inside, 0), 0)
    tl.store(chosen + row, piece * PIECE + tl.minimum(tl.sum((reached <= target).to(tl.int32), 0), last))


@jit
def draw_likely_kernel(
    chosen, falling, ids, row_sum, temperature, top_k, top_p, min_p, uniforms, V, C: tl.constexpr, BLOCK: tl.constexpr
):
    """Grid (rows): min_p, top_k, top_p and the draw over the C largest logits, falling. -1: these can't decide it.

    row_sum: weights of the whole row, float64. The arithmetic is draw.py's, step by step.
    """
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, BLOCK)
    x = tl.load(falling + row * C + index, mask=index < C, other=float("-inf"))
    weights = tl.exp((x - tl.load(falling + row * C)) / tl.load(temperature + row))
    limit = tl.load(top_k + row)
    limit = tl.where((limit <= 0) | (limit > V), V, limit)
    least = tl.load(min_p + row)
    num_above = tl.sum(((weights >= least) & (index < C)).to(tl.int32), 0)
    # If all candidates pass, how many pass in the whole row isn't known.
    knows_limit = (least <= 0.0) | (num_above < C) | (limit <= C) | (V <= C)
    limit = tl.where(least > 0.0, tl.minimum(limit, num_above), limit)
    weights = tl.where((index < limit) & (index < C), weights, 0.0)

    wide = weights.to(tl.float64)
    share = tl.load(top_p + row)
    reached = tl.cumsum(wide, 0)
    total = tl.where(limit == V, tl.load(row_sum + row), tl.sum(wide, 0))
    is_open = ((reached - wide) / total < share) & (index < limit) & (index < C)
    kept = tl.sum(is_open.to(tl.int32), 0)
    kept = tl.where(share >= 1.0, tl.minimum(limit, C), kept)
    decided = knows_limit & ((limit <= C) | ((limit == V) & (share < 1.0) & (kept < C)))

    weights = tl.where(index < kept, weights, 0.0)
    target = tl.load(uniforms + row) * tl.sum(tl.where(index < kept, wide, 0.0), 0)
    last = tl.max(tl.where(weights > 0.0, index, 0), 0)
    place = tl.minimum(tl.sum(((reached <= target) & (index < kept)).to(tl.int32), 0), last)
    token = tl.load(ids + row * C + place).to(tl.int32)
    tl.store(chosen + row, tl.where(decided, token, -1))


class RowMax(NamedTuple):
    token: Tensor
    """int32 [R]; of equal logits, the lower id."""
    logit: Tensor
    """float32 [R]."""


def argmax(logits: Tensor) -> RowMax:
    """The largest of each row of float32 [R, V]."""
    rows, vocab = logits.shape
    assert logits.is_contiguous()
    pieces = -(-vocab // PIECE)
    piece_max = torch.empty((rows, pieces), device=logits.device)
    piece_ids = torch.empty((rows, pieces), dtype=torch.int32, device=logits.device)
    piece_argmax_kernel[(rows, pieces)](piece_max, piece_ids, logits, vocab, PIECE=PIECE)
    found = RowMax(piece_ids.new_empty(rows), piece_max.new_empty(rows))
    row_argmax_kernel[(rows,)](
        found.token, found.logit, piece_max, piece_ids, vocab, pieces, BLOCK=power_of_two(pieces)
    )
    return found


class DrawParams(NamedTuple):
    """One number a row, [R], on the device of the logits. temperature, min_p: float32; top_p: float64; top_k: int32."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    uniforms: Tensor
    """float64, in [0, 1)."""


def draw(logits: Tensor, params: DrawParams) -> Tensor:
    """A token by the whole distribution, int32 [R], from float32 [R, V]; top_k, top_p and min_p are not looked at."""
    chosen = torch.empty(len(logits), dtype=torch.int32, device=logits.device)
    row_max = argmax(logits).logit
    piece_sum = _piece_sums(logits, row_max, params.temperature)
    vocab, pieces = logits.shape[1], piece_sum.shape[1]
    invert_kernel[(len(logits),)](
        chosen,
        piece_sum,
        logits,
        row_max,
        params.temperature,
        params.uniforms,
        vocab,
        pieces,
        PIECE=PIECE,
        BLOCK=power_of_two(pieces),
    )
    return chosen


def draw_likely(logits: Tensor, params: DrawParams) -> Tensor:
    """A token from each row's likely set, int32 [R]; -1 where the set may reach beyond the first `CANDIDATES`.

    Of equal logits, draw.py puts the lower id first; here their order is that of `torch.topk`.
    """
    vocab = logits.shape[1]
    falling, ids = logits.topk(min(CANDIDATES, vocab))
    chosen = torch.empty(len(logits), dtype=torch.int32, device=logits.device)
    row_sum = _piece_sums(logits, falling[:, 0].contiguous(), params.temperature).sum(1)
    draw_likely_kernel[(len(logits),)](
        chosen,
        falling.contiguous(),
        ids.contiguous(),
        row_sum,
        params.temperature,
        params.top_k,
        params.top_p,
        params.min_p,
        params.uniforms,
        vocab,
        C=falling.shape[1],
        BLOCK=power_of_two(falling.shape[1]),
    )
    return chosen


def _piece_sums(logits: Tensor, row_max: Tensor, temperature: Tensor) -> Tensor:
    """float64 [R, pieces]."""
    rows, vocab = logits.shape
    assert logits.is_contiguous()
    pieces = -(-vocab // PIECE)
    sums = torch.empty((rows, pieces), dtype=torch.float64, device=logits.device)
    piece_weights_kernel[(rows, pieces)](sums, logits, row_max, temperature, vocab, PIECE=PIECE)
    return sums
