# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# ruff: noqa: N803, N806
"""Paged attention: one kernel for prefill chunks and single tokens, causal, with window, soft cap and grouped heads.

The query heads that share a KV head are rows of one tile, so that a key is read once for all of them: a program takes
some queries of one sequence times the G heads of one KV head. Keys are gathered through the block table token by token
(neighbours lie in one block, so the table's line stays in cache), which makes every block size the same case.

A sequence that generates has one query and perhaps a long context: too little work for a GPU if one program reads it
all. There the context is split ("flash-decoding", Dao et al. 2023): each program leaves a partial result and its log
of summed weights, and a second kernel mixes them, in order. How many splits depends on the batch, never on timing; so
equal steps give equal bits, and the same sequence in another batch may differ in the last ones, as with cuBLAS.

Letters as in `kernels/reference.py`, and N: keys in a tile, M: rows (query, head) in a tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tandem.engine.kernels.step import GroupTensors, StepTensors
from tandem.engine.kernels.triton.language import IS_INTERPRETED, PagedKV, jit, num_processors, power_of_two, tl

MAX_SPLITS = 32
LEAST_KEYS_IN_SPLIT = 128


@dataclass(frozen=True, slots=True)
class StepLayout:
    """What the host knows of a step and a launch needs, so that nothing is read back from the device."""

    num_sequences: int
    num_decodes: int
    """Leading sequences with one query each, token i being sequence i. The scheduler puts those that generate first."""
    max_queries: int
    """Most queries of a sequence."""
    max_context: int
    """Longest context in tokens, or any bound on it."""
    table_rows: Tensor | None = None
    """int32 [S]: the row of the block tables for each sequence; None: row s for sequence s."""


def layout_of(query_lengths: list[int], context_lengths: list[int], table_rows: Tensor | None = None) -> StepLayout:
    """The layout of a step of S ≥ 1 sequences."""
    num_decodes = next((i for i, n in enumerate(query_lengths) if n != 1), len(query_lengths))
    return StepLayout(len(query_lengths), num_decodes, max(query_lengths), max(context_lengths), table_rows)


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
    D: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Grid (S · Q): mean of the splits' results, weighted by their summed weights. A split without keys has -inf."""
    row = tl.program_id(0).to(tl.int64)
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
    tl.store(output + row * D + dims, mixed.to(output.dtype.element_ty), mask=dims < D)


class Tiles(NamedTuple):
    rows: int
    keys: int
    warps: int


NUM_STAGES = 3
"""The least with which the block table is read ahead of the keys that it leads to."""
PROGRAMS_BY_PROCESSOR = 4
"""Of a single query each: so many fit a multiprocessor's registers, and their tiles in flight cover memory's latency."""
PRECISION = "ieee" if torch.version.hip else "tf32x3"
"""Of products in float32; tf32x3 is as exact within a digit, and on tensor cores (ieee is not, and spills)."""


def choose_tiles(rows_wanted: int, head_dim: int, element_bytes: int) -> Tiles:
    """Tile sizes: one row of tensor cores' tiles for a single query, 128 rows for prompts. Two tiles of keys and values
    must fit the shared memory of the smallest GPU in use (99 KiB), which wide heads and float32 make scarce."""
    row_bytes = power_of_two(head_dim) * element_bytes
    keys = 64 if row_bytes <= 256 else 32 if row_bytes <= 512 else 16
    most = 32 if element_bytes == 4 else 128 if row_bytes <= 256 else 64
    rows = 16 if rows_wanted <= 16 else 32 if rows_wanted <= 32 else most
    return Tiles(rows, keys, 8 if rows > 32 else 4)


def choose_splits(num_programs: int, max_context: int, processors: int) -> int:
    """Parts of a context, for `num_programs` pairs of sequence and KV head: enough for every processor's
    programs, and none so short that mixing costs more than reading."""
    wanted = -(-PROGRAMS_BY_PROCESSOR * processors // num_programs)
    return max(1, min(wanted, MAX_SPLITS, max_context // LEAST_KEYS_IN_SPLIT))


def paged_attention(
    queries: Tensor,
    kv: PagedKV,
    step: StepTensors,
    group: GroupTensors,
    layout: StepLayout,
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    num_splits: int | None = None,
) -> Tensor:
    """`reference.paged_attention` on a GPU: [T, Q, D] → [T, Q, D], one launch for the leading sequences with a single
    query (two where their contexts are split), one for the others. `num_splits` overrides the heuristic."""
    launch = _Launch(queries, torch.empty_like(queries), kv, step, group, layout, scale, window, soft_cap)
    if layout.num_decodes:
        programs = layout.num_decodes * kv.data.shape[2]
        splits = num_splits or choose_splits(programs, layout.max_context, num_processors(queries.device))
        launch.decode(splits)
    if layout.num_decodes < layout.num_sequences:
        launch.prefill()
    return launch.output


@dataclass(slots=True)
class _Launch:
    """Everything the two launches of a call share."""

    queries: Tensor
    output: Tensor
    kv: PagedKV
    step: StepTensors
    group: GroupTensors
    layout: StepLayout
    scale: float
    window: int | None
    soft_cap: float | None

    def decode(self, num_splits: int) -> None:
        num_sequences, (_, num_heads, head_dim) = self.layout.num_decodes, self.queries.shape
        partial_output = partial_log_sum = self.output
        if num_splits > 1:
            partial_log_sum = self.queries.new_empty((num_sequences, num_heads, num_splits), dtype=torch.float32)
            partial_output = partial_log_sum.new_empty((num_sequences, num_heads, num_splits, head_dim))
        tiles = self._tiles(max_queries=1)
        self._run(num_sequences, num_splits, tiles, partial_output, partial_log_sum, is_decode=True)
        if num_splits > 1:
            mix_splits_kernel[(num_sequences * num_heads,)](
                self.output,
                partial_output,
                partial_log_sum,
                D=head_dim,
                NUM_SPLITS=num_splits,
                BLOCK_SPLITS=power_of_two(num_splits),
                BLOCK_D=power_of_two(head_dim),
            )

    def prefill(self) -> None:
        layout, num_kv_heads = self.layout, self.kv.data.shape[2]
        tiles = self._tiles(layout.max_queries)
        queries_in_tile = tiles.rows // (self.queries.shape[1] // num_kv_heads)
        num_tokens = len(self.queries) - layout.num_decodes
        num_tiles = num_tokens // queries_in_tile + layout.num_sequences - layout.num_decodes
        self._run(num_tiles, 1, tiles, self.output, self.output, is_decode=False)

    def _tiles(self, max_queries: int) -> Tiles:
        group = self.queries.shape[1] // self.kv.data.shape[2]
        tiles = choose_tiles(
            max_queries * group, self.queries.shape[2], 4 if self._is_wide() else self.queries.element_size()
        )
        return tiles if tiles.rows >= group else tiles._replace(rows=power_of_two(group))

    def _is_wide(self) -> bool:
        """In float32 where queries and KV differ. (The interpreter multiplies bfloat16 as integers.)"""
        differs = self.kv.data.dtype not in (self.queries.dtype, torch.int8)
        return differs or (IS_INTERPRETED and self.queries.dtype == torch.bfloat16)

    def _run(
        self,
        num_tiles: int,
        num_splits: int,
        tiles: Tiles,
        partial_output: Tensor,
        partial_log_sum: Tensor,
        *,
        is_decode: bool,
    ) -> None:
        data, scales = self.kv
        _, _, num_kv_heads, block_size, head_dim = data.shape
        assert data.is_contiguous(), "the kernel computes a slot's address itself"
        assert self.queries.is_contiguous()
        rows = self.layout.table_rows
        attention_kernel[(num_tiles, num_kv_heads, num_splits)](
            self.output,
            partial_output,
            partial_log_sum,
            self.queries,
            data[0],
            data[1],
            data if scales is None else scales[0],
            data if scales is None else scales[1],
            self.group.block_tables,
            self.step.query_start if rows is None else rows,
            self.step.query_start,
            self.step.context_len,
            self.layout.num_decodes,
            self.layout.num_sequences,
            self.group.block_tables.stride(0),
            self.scale,
            self.soft_cap or 1.0,
            Q=self.queries.shape[1],
            K=num_kv_heads,
            D=head_dim,
            BLOCK_SIZE=block_size,
            WINDOW=self.window or 0,
            HAS_CAP=self.soft_cap is not None,
            HAS_ROWS=rows is not None,
            IS_INT8=scales is not None,
            IS_DECODE=is_decode,
            NUM_SPLITS=num_splits,
            M=tiles.rows,
            N=tiles.keys,
            BLOCK_D=power_of_two(head_dim),
            WIDE=self._is_wide(),
            PRECISION=PRECISION,
            num_warps=tiles.warps,
            num_stages=NUM_STAGES,
        )
