"""A step's plan as arrays. Block tables are kept between steps, one row a seated request, and only added to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tandem.core.request import Request
from tandem.engine.scheduler import ScheduledRequest

Int32Array = npt.NDArray[np.int32]


@dataclass(slots=True)
class _RowState:
    """What of a request's block tables the arrays already have."""

    row: int
    version: int
    lengths: list[int]


class BlockTableRows:
    """int32 block tables of all seated requests: one array [max_num_seqs, max_blocks] for each layer group."""

    def __init__(self, num_groups: int, max_num_seqs: int, max_blocks: int) -> None:
        self._arrays = [np.zeros((max_num_seqs, max_blocks), dtype=np.int32) for _ in range(num_groups)]
        self._free_rows = list(range(max_num_seqs))
        self._states: dict[Request, _RowState] = {}

    def update(self, request: Request) -> int:
        """Bring the request's row up to date; returns its index."""
        state = self._states.get(request)
        if state is None:
            state = _RowState(self._free_rows.pop(), request.table_version, [0] * len(self._arrays))
            self._states[request] = state
        elif state.version != request.table_version:
            state.version, state.lengths = request.table_version, [0] * len(self._arrays)
        for group, (array, table) in enumerate(zip(self._arrays, request.block_tables, strict=True)):
            known = state.lengths[group]
            if known < len(table):
                array[state.row, known : len(table)] = table[known:]
                state.lengths[group] = len(table)
        return state.row

    def release(self, request: Request) -> None:
        state = self._states.pop(request, None)
        if state is not None:
            self._free_rows.append(state.row)

    def take(self, rows: Sequence[int], num_blocks: int) -> list[Int32Array]:
        """Contiguous copies, int32 [S, num_blocks] by group."""
        return [array[np.asarray(rows), :num_blocks] for array in self._arrays]


@dataclass(slots=True)
class StepArrays:
    """See `kernels.step.StepTensors` for shapes; groups are lists here."""

    token_ids: Int32Array
    positions: Int32Array
    query_start: Int32Array
    context_len: Int32Array
    block_tables: list[Int32Array]
    slot_mappings: list[Int32Array]


def build_arrays(scheduled: Sequence[ScheduledRequest], tables: BlockTableRows, block_size: int) -> StepArrays:
    """Arrays for one step. Where every request computes one token, no loop over tokens is run in Python."""
    counts = np.fromiter((s.num_tokens for s in scheduled), np.int32, len(scheduled))
    starts = np.fromiter((s.start for s in scheduled), np.int32, len(scheduled))
    query_start = np.zeros(len(scheduled) + 1, dtype=np.int32)
    np.cumsum(counts, out=query_start[1:])
    context_len = starts + counts
    rows = [tables.update(s.request) for s in scheduled]
    block_tables = tables.take(rows, -(-int(context_len.max()) // block_size))
    sequence = np.repeat(np.arange(len(scheduled), dtype=np.int32), counts)
    positions = (np.arange(query_start[-1], dtype=np.int32) - query_start[sequence]) + starts[sequence]
    slots = [table[sequence, positions // block_size] * block_size + positions % block_size for table in block_tables]
    return StepArrays(_token_ids(scheduled, query_start), positions, query_start, context_len, block_tables, slots)


def _token_ids(scheduled: Sequence[ScheduledRequest], query_start: Int32Array) -> Int32Array:
    token_ids = np.empty(query_start[-1], dtype=np.int32)
    for index, (s, at) in enumerate(zip(scheduled, query_start[:-1].tolist(), strict=True)):
        if s.num_tokens == 1:
            token_ids[at] = s.request.token_ids[s.start]
        else:
            token_ids[at : query_start[index + 1]] = s.request.token_ids[s.start : s.start + s.num_tokens]
    return token_ids
