"""Paged attention: one kernel for prefill chunks and single tokens, causal, with window, soft cap and grouped heads.

The query heads that share a KV head are rows of one tile, so that a key is read once for all of them: a program takes
some queries of one sequence times the G heads of one KV head. Keys are gathered through the block table token by token
(neighbours lie in one block, so the table's line stays in cache), which makes every block size the same case.

A sequence that generates has one query and perhaps a long context: too little work for a GPU if one program reads it
all. There the context is split ("flash-decoding", Dao et al. 2023): each program leaves a partial result and its log
of summed weights, and a second kernel mixes them, in order. How many splits depends on the batch, never on timing; so
equal steps give equal bits, and the same sequence in another batch may differ in the last ones, as with cuBLAS.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tandem.engine.kernels.step import GroupTensors, StepTensors
from tandem.engine.kernels.triton.attention_kernels import attention_kernel, mix_splits_kernel
from tandem.engine.kernels.triton.language import IS_INTERPRETED, PagedKV, num_processors, power_of_two

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
    decides_on_device: bool = False
    """Nothing is known of the sequences: the kernels read from `query_start` which have one query, and those take the
    launch for them wherever they stand. `num_decodes` plays no part."""


def layout_of(query_lengths: list[int], context_lengths: list[int], table_rows: Tensor | None = None) -> StepLayout:
    """The layout of a step of S ≥ 1 sequences."""
    num_decodes = next((i for i, n in enumerate(query_lengths) if n != 1), len(query_lengths))
    return StepLayout(len(query_lengths), num_decodes, max(query_lengths), max(context_lengths), table_rows)


class Tiles(NamedTuple):
    rows: int
    keys: int
    warps: int


NUM_STAGES = 3
"""The least with which the block table is read ahead of the keys that it leads to."""
PROGRAMS_BY_PROCESSOR = 4
"""Of a single query each: so many fit a processor's registers, and their tiles in flight cover memory's latency."""
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
    singles = layout.num_sequences if layout.decides_on_device else layout.num_decodes
    if singles:
        programs = singles * kv.data.shape[2]
        splits = num_splits or choose_splits(programs, layout.max_context, num_processors(queries.device))
        launch.decode(singles, splits)
    if layout.decides_on_device or layout.num_decodes < layout.num_sequences:
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

    def decode(self, num_sequences: int, num_splits: int) -> None:
        _, num_heads, head_dim = self.queries.shape
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
                self.step.query_start,
                Q=num_heads,
                D=head_dim,
                DECIDES=self.layout.decides_on_device,
                NUM_SPLITS=num_splits,
                BLOCK_SPLITS=power_of_two(num_splits),
                BLOCK_D=power_of_two(head_dim),
            )

    def prefill(self) -> None:
        layout, num_kv_heads = self.layout, self.kv.data.shape[2]
        tiles = self._tiles(layout.max_queries)
        queries_in_tile = tiles.rows // (self.queries.shape[1] // num_kv_heads)
        first = 0 if layout.decides_on_device else layout.num_decodes
        num_tiles = (len(self.queries) - first) // queries_in_tile + layout.num_sequences - first
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
        assert data[0].is_contiguous(), "the kernel computes a slot's address itself"
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
            0 if self.layout.decides_on_device else self.layout.num_decodes,
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
            DECIDES=self.layout.decides_on_device,
            NUM_SPLITS=num_splits,
            M=tiles.rows,
            N=tiles.keys,
            BLOCK_D=power_of_two(head_dim),
            WIDE=self._is_wide(),
            PRECISION=PRECISION,
            num_warps=tiles.warps,
            num_stages=NUM_STAGES,
        )
