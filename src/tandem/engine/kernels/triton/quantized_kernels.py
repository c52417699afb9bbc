# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# ruff: noqa: N803, N806
"""The kernels of products with quantised weights. `quantized_linear.py` says how the work is divided.

Codes are centred (int8: less 128, int4: less 8), which leaves small whole numbers that bfloat16 holds exactly; so a
tile is multiplied as it is, and its sum is scaled once. What an offset adds is the sum of the inputs times the offset.
"""

from __future__ import annotations

from tandem.engine.kernels.triton.language import jit, tl


@jit
def _centred(codes, IS_FP8: tl.constexpr, HALF: tl.constexpr, dtype: tl.constexpr):
    """uint8 → numbers of `dtype`. e4m3 is widened by its bits, as float16 with another bias: no GPU is too old."""
    if IS_FP8:
        wide = codes.to(tl.uint16)
        bits = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
        return (bits.to(tl.float16, bitcast=True) * 256.0).to(dtype)
    else:
        return (codes.to(tl.int32) - HALF).to(dtype)


@jit(do_not_specialize=["num_tokens"])
def quantized_linear_kernel(
    output,
    partial,
    x,
    x_scale,
    codes,
    scale,
    offset,
    bias,
    num_tokens,
    N: tl.constexpr,
    K: tl.constexpr,
    GROUP: tl.constexpr,  # K: one scale a row
    HALF: tl.constexpr,
    IS_FP8: tl.constexpr,
    IS_PACKED: tl.constexpr,
    HAS_OFFSET: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_X_SCALE: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,  # divides GROUP, or there is one group
    DOT: tl.constexpr,  # the type that is multiplied
    SUM: tl.constexpr,  # and the type of its sums
    PRECISION: tl.constexpr,
):
    """Grid (tiles of tokens, tiles of outputs, splits of the inputs). x: [T, K]; codes: [N, K], or [N, K / 2] packed;
    scale, offset: float32 [N, K / GROUP]; x_scale: float32 [T]; partial: float32 [splits, T, N]."""
    BY_ROW: tl.constexpr = GROUP == K
    ROW_BYTES: tl.constexpr = K // 2 if IS_PACKED else K
    TILE: tl.constexpr = BLOCK_K // 2 if IS_PACKED else BLOCK_K
    row = tl.program_id(0) * M + tl.arange(0, M)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(2)
    row_exists = row < num_tokens
    column_exists = column < N
    x_row = x + row.to(tl.int64)[:, None] * K
    code_row = codes + column.to(tl.int64)[None, :] * ROW_BYTES

    share: tl.constexpr = tl.cdiv(tl.cdiv(K, BLOCK_K), NUM_SPLITS) * BLOCK_K
    begin = split * share
    end = tl.minimum(begin + share, K)
    total = tl.zeros([M, BLOCK_N], tl.float32)
    whole = tl.zeros([M, BLOCK_N], SUM)
    x_sum = tl.zeros([M], tl.float32)
    for first in range(begin, end, BLOCK_K):
        if IS_PACKED:
            at = first // 2 + tl.arange(0, TILE)
            low = at // 16 * 32 + at % 16
        else:
            at = first + tl.arange(0, TILE)
            low = at
        exists = low < end
        stored = tl.load(code_row + at[:, None], mask=exists[:, None] & column_exists[None, :], other=0)
        inputs = tl.load(x_row + low[None, :], mask=row_exists[:, None] & exists[None, :], other=0).to(DOT)
        if IS_PACKED:
            later = tl.load(x_row + low[None, :] + 16, mask=row_exists[:, None] & exists[None, :], other=0).to(DOT)
            weights = _centred(stored & 15, IS_FP8, HALF, DOT)
            found = tl.dot(inputs, weights, input_precision=PRECISION, out_dtype=SUM)
            found += tl.dot(later, _centred(stored >> 4, IS_FP8, HALF, DOT), input_precision=PRECISION, out_dtype=SUM)
        else:
            weights = _centred(stored, IS_FP8, HALF, DOT)
            found = tl.dot(inputs, weights, input_precision=PRECISION, out_dtype=SUM)
        if HAS_OFFSET:
            tile_sum = tl.sum(inputs.to(tl.float32), 1)
            if IS_PACKED:
                tile_sum += tl.sum(later.to(tl.float32), 1)
            x_sum += tile_sum
        if BY_ROW:
            whole += found
        else:
            group = column.to(tl.int64) * (K // GROUP) + first // GROUP
            own = tl.load(scale + group, mask=column_exists, other=0.0)
            total += found.to(tl.float32) * own[None, :]
            if HAS_OFFSET:
                shift = tl.load(offset + group, mask=column_exists, other=0.0) + own * HALF
                total += tile_sum[:, None] * shift[None, :]
    if BY_ROW:
        own = tl.load(scale + column, mask=column_exists, other=0.0)
        total = whole.to(tl.float32) * own[None, :]
        if HAS_OFFSET:
            shift = tl.load(offset + column, mask=column_exists, other=0.0) + own * HALF
            total += x_sum[:, None] * shift[None, :]
    if HAS_X_SCALE:
        total *= tl.load(x_scale + row, mask=row_exists, other=0.0)[:, None]

    place = row.to(tl.int64)[:, None] * N + column[None, :]
    stores = row_exists[:, None] & column_exists[None, :]
    if NUM_SPLITS > 1:
        tl.store(partial + split * num_tokens.to(tl.int64) * N + place, total, mask=stores)
    else:
        if HAS_BIAS:
            total += tl.load(bias + column, mask=column_exists, other=0.0).to(tl.float32)[None, :]
        tl.store(output + place, total.to(output.dtype.element_ty), mask=stores)


@jit(do_not_specialize=["count"])
def sum_splits_kernel(
    output,
    partial,
    bias,
    count,
    N: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid (tiles of the `count` = T · N results): adds the splits, always in the same order."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    exists = at < count
    total = tl.zeros([BLOCK], tl.float32)
    for split in range(NUM_SPLITS):
        total += tl.load(partial + split * count.to(tl.int64) + at, mask=exists, other=0.0)
    if HAS_BIAS:
        total += tl.load(bias + at % N, mask=exists, other=0.0).to(tl.float32)
    tl.store(output + at, total.to(output.dtype.element_ty), mask=exists)


@jit
def quantized_embedding_kernel(
    output,
    token_ids,
    codes,
    scale,
    offset,
    K: tl.constexpr,
    GROUP: tl.constexpr,
    HALF: tl.constexpr,
    IS_FP8: tl.constexpr,
    IS_PACKED: tl.constexpr,
    HAS_OFFSET: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid (T, tiles of a row). output: [T, K]."""
    token = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exists = k < K
    row = tl.load(token_ids + token).to(tl.int64)
    if IS_PACKED:
        stored = tl.load(codes + row * (K // 2) + k // 32 * 16 + k % 16, mask=exists, other=0)
        stored = tl.where(k % 32 < 16, stored & 15, stored >> 4)
    else:
        stored = tl.load(codes + row * K + k, mask=exists, other=0)
    group = row * (K // GROUP) + k // GROUP
    own = tl.load(scale + group, mask=exists, other=0.0)
    value = _centred(stored, IS_FP8, HALF, tl.float32) * own
    if HAS_OFFSET:
        value += tl.load(offset + group, mask=exists, other=0.0) + own * HALF
    tl.store(output + token * K + k, value.to(output.dtype.element_ty), mask=exists)
