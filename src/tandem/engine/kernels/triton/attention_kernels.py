# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# ruff: noqa: N803, N806
"""The kernels of paged attention. `attention.py` says how the work is divided, and launches them.

Letters as in `kernels/reference.py`, and N: keys in a tile, M: rows (query, head) in a tile.
"""

from __future__ import annotations

from tandem.engine.kernels.triton.language import jit, tl


@jit(do_not_specialize=["first_sequence", "num_sequences"])
def attention_kernel(
    output,
    partial_output,
    partial_log_sum,
    queries,
    keys,
    values,
    key_scales,
    value_scales,
    tables,
    table_rows,
    query_start,
    context_len,
    first_sequence,
    num_sequences,
    table_stride,
    scale,
    soft_cap,
    Q: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,  # 0: none
    HAS_CAP: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    IS_INT8: tl.constexpr,
    IS_DECODE: tl.constexpr,
    DECIDES: tl.constexpr,  # by the number of its queries, whether a sequence is of this launch
    NUM_SPLITS: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    WIDE: tl.constexpr,  # multiply in float32
    PRECISION: tl.constexpr,
):
    """Grid (tiles of queries, K, splits). queries, output: [T, Q, D]; tables: int32 [rows, blocks]."""
    GROUP: tl.constexpr = Q // K
    TILE: tl.constexpr = M // GROUP  # queries in a tile
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)

    if IS_DECODE:
        sequence = tile
        begin = tile
        num_queries = 1
        first_query = 0
        if DECIDES:
            begin = tl.load(query_start + sequence)
            if tl.load(query_start + sequence + 1) - begin != 1:
                return
    else:
        # Sequence s has the tiles from query_start[s] // TILE + s on: perhaps one more than it needs, and nobody
        # has to count tiles on the host. (Counting from the first sequence of this launch.)
        first_token = tl.load(query_start + first_sequence)
        low_s = first_sequence
        high_s = num_sequences
        while high_s - low_s > 1:
            middle = (low_s + high_s) // 2
            middle_tile = (tl.load(query_start + middle) - first_token) // TILE + middle - first_sequence
            if middle_tile <= tile:
                low_s = middle
            else:
                high_s = middle
        sequence = low_s
        begin = tl.load(query_start + sequence)
        num_queries = tl.load(query_start + sequence + 1) - begin
        first_query = (tile - (begin - first_token) // TILE - (sequence - first_sequence)) * TILE
        if first_query >= num_queries:
            return
        if DECIDES:  # noqa: SIM102  (known when compiled, and the other is not)
            if num_queries == 1:
                return

    context = tl.load(context_len + sequence)
    row = tl.load(table_rows + sequence) if HAS_ROWS else sequence
    table = tables + row.to(tl.int64) * table_stride

    rows = tl.arange(0, M)
    dims = tl.arange(0, BLOCK_D)
    query = first_query + rows // GROUP
    head = kv_head * GROUP + rows % GROUP
    row_exists = (rows < TILE * GROUP) & (query < num_queries)
    position = context - num_queries + query
    dim_exists = dims < D
    at = ((begin + query).to(tl.int64) * Q + head)[:, None] * D + dims[None, :]
    q = tl.load(queries + at, mask=row_exists[:, None] & dim_exists[None, :], other=0.0)
    if WIDE:
        q = q.to(tl.float32)

    # Keys that any query of the tile may see, [low, high), and of these this split's part.
    high = tl.minimum(context - num_queries + first_query + TILE, context)
    low = 0
    if WINDOW > 0:
        low = tl.maximum(context - num_queries + first_query - WINDOW + 1, 0)
    start = low // N * N
    stop = high
    if NUM_SPLITS > 1:
        share = tl.cdiv(tl.cdiv(high - start, N), NUM_SPLITS) * N
        start += split * share
        stop = tl.minimum(high, start + share)

    largest = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    mixed = tl.zeros([M, BLOCK_D], tl.float32)
    for first_key in range(start, stop, N):
        token = first_key + tl.arange(0, N)
        # Before `low` the table may name blocks that were given away, and memory behind `stop` was never written.
        present = (token >= low) & (token < stop)
        block = tl.load(table + token // BLOCK_SIZE, mask=present, other=0)
        slot = (block.to(tl.int64) * K + kv_head) * BLOCK_SIZE + token % BLOCK_SIZE
        k = tl.load(keys + slot[None, :] * D + dims[:, None], mask=present[None, :] & dim_exists[:, None], other=0)
        scores = tl.dot(q, k.to(q.dtype), input_precision=PRECISION) * scale
        if IS_INT8:
            scores *= tl.load(key_scales + slot, mask=present, other=0.0)[None, :]
        if HAS_CAP:
            scores = soft_cap * (1.0 - 2.0 / (tl.exp(2.0 * scores / soft_cap) + 1.0))  # tanh
        visible = present[None, :] & (token[None, :] <= position[:, None]) & row_exists[:, None]
        if WINDOW > 0:
            visible &= token[None, :] > position[:, None] - WINDOW
        scores = tl.where(visible, scores * 1.4426950408889634, float("-inf"))  # exp(x) = exp2(x · log2 e)

        new_largest = tl.maximum(largest, tl.max(scores, 1))
        # A row that has seen nothing yet must not compute -inf - -inf.
        base = tl.where(new_largest == float("-inf"), 0.0, new_largest)
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(largest - base)
        total = total * shrink + tl.sum(weights, 1)
        v = tl.load(values + slot[:, None] * D + dims[None, :], mask=present[:, None] & dim_exists[None, :], other=0)
        if IS_INT8:
            weights *= tl.load(value_scales + slot, mask=present, other=0.0)[None, :]
        mixed = mixed * shrink[:, None] + tl.dot(weights.to(q.dtype), v.to(q.dtype), input_precision=PRECISION)
        largest = new_largest

    mixed = mixed / tl.where(total > 0.0, total, 1.0)[:, None]
    if NUM_SPLITS > 1:
        place = (sequence * Q + head).to(tl.int64) * NUM_SPLITS + split
        log_sum = tl.where(total > 0.0, largest + tl.log2(tl.where(total > 0.0, total, 1.0)), float("-inf"))
        tl.store(partial_log_sum + place, log_sum, mask=row_exists)
        whole = row_exists[:, None] & dim_exists[None, :]
        tl.store(partial_output + place[:, None] * D + dims[None, :], mixed, mask=whole)
    else:
        tl.store(output + at, mixed.to(output.dtype.element_ty), mask=row_exists[:, None] & dim_exists[None, :])


@jit
def mix_splits_kernel(
    output,
    partial_output,
    partial_log_sum,
    query_start,
    Q: tl.constexpr,
    D: tl.constexpr,
    DECIDES: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Grid (S · Q): mean of the splits' results, weighted by their summed weights. A split without keys has -inf."""
    row = tl.program_id(0).to(tl.int64)
    target = row
    if DECIDES:
        begin = tl.load(query_start + row // Q)
        if tl.load(query_start + row // Q + 1) - begin != 1:
            return
        target = begin.to(tl.int64) * Q + row % Q
    split = tl.arange(0, BLOCK_SPLITS)
    dims = tl.arange(0, BLOCK_D)
    log_sum = tl.load(partial_log_sum + row * NUM_SPLITS + split, mask=split < NUM_SPLITS, other=float("-inf"))
    largest = tl.max(log_sum, 0)
    weights = tl.exp2(log_sum - tl.where(largest == float("-inf"), 0.0, largest))
    exists = (weights > 0.0)[:, None] & (dims < D)[None, :]
    at = (row * NUM_SPLITS + split)[:, None] * D + dims[None, :]
    mixed = tl.sum(tl.load(partial_output + at, mask=exists, other=0.0) * weights[:, None], 0)
    total = tl.sum(weights, 0)
    mixed = mixed / tl.where(total > 0.0, total, 1.0)
    tl.store(output + target * D + dims, mixed.to(output.dtype.element_ty), mask=dims < D)
