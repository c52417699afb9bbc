"""A step's inputs on the way to a GPU: block tables that live there, and one upload a step for all the rest.

What a step needs from the host is some kilobytes: token ids, positions, lengths, slots, and the entries of block tables
that are new. They are laid one after another in pinned memory and copied at once, without waiting; the kernels read
them where they landed. Block tables, megabytes with long contexts, stay on the device, a row a seated request, and get
only what changed.

No network here, and no choice of kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tandem.core.request import Request
from tandem.engine.kernels.step import GroupTensors, StepTensors
from tandem.engine.kernels.triton.attention import StepLayout, layout_of
from tandem.engine.runner.batch import BlockTableRows, Int32Array
from tandem.engine.scheduler import ScheduledRequest

ALIGNMENT = 16
"""In int32 elements. Addresses then look alike to Triton, whatever the sizes, and nothing is compiled twice."""
CHANGES_IN_UPLOAD = 4096
"""New table entries that fit the step's one upload: 65,536 tokens at 16 a block. More go in one of their own."""


class DeviceTables(BlockTableRows):
    """Block tables kept twice, here and on the device; remembers which entries the device lacks."""

    def __init__(self, num_groups: int, max_num_seqs: int, max_blocks: int, device: torch.device) -> None:
        max_blocks = _padded(max_blocks)
        super().__init__(num_groups, max_num_seqs, max_blocks)
        self.on_device = torch.zeros((num_groups, max_num_seqs, max_blocks), dtype=torch.int32, device=device)
        self._max_num_seqs = max_num_seqs
        self._max_blocks = max_blocks
        self._changed: list[tuple[int, Int32Array]] = []

    def update(self, request: Request) -> int:
        state = self._states.get(request)
        is_current = state is not None and state.version == request.table_version
        known = list(state.lengths) if state is not None and is_current else [0] * len(self._arrays)
        row = super().update(request)
        for group, (begin, table) in enumerate(zip(known, request.block_tables, strict=True)):
            if begin < len(table):
                at = (group * self._max_num_seqs + row) * self._max_blocks + begin
                self._changed.append((at, np.asarray(table[begin:], dtype=np.int32)))
        return row

    def take_changes(self) -> tuple[Int32Array, Int32Array]:
        """Places in `on_device`, flat, and what belongs there."""
        changed, self._changed = self._changed, []
        if not changed:
            return np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int32)
        places = [np.arange(at, at + len(blocks), dtype=np.int32) for at, blocks in changed]
        return np.concatenate(places), np.concatenate([blocks for _, blocks in changed])

    def slots(self, group: int, rows: Int32Array, positions: Int32Array, block_size: int) -> Int32Array:
        """Of one token each, at `positions` of the sequences with these rows."""
        found: Int32Array = self._arrays[group][rows, positions // block_size] * block_size + positions % block_size
        return found


class _Places(NamedTuple):
    """Where each array begins in the upload, in elements: equal for equal numbers of tokens, sequences and logits."""

    token_ids: int
    positions: int
    query_start: int
    context_len: int
    rows: int
    logit_rows: int
    slots: int
    """Of the first group; the others follow, `_padded(T)` apart."""
    changes: int


def _padded(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT


class StepInputs:
    """Owns the pinned memory, its twin on the device, and the block tables."""

    def __init__(
        self, tables: DeviceTables, num_groups: int, max_num_seqs: int, max_tokens: int, block_size: int
    ) -> None:
        self.tables = tables
        self._num_groups = num_groups
        self._block_size = block_size
        device = tables.on_device.device
        size = self._places(max_tokens, max_num_seqs, max_num_seqs).changes + 2 * CHANGES_IN_UPLOAD
        self._device = torch.zeros(size, dtype=torch.int32, device=device)
        self._host = torch.zeros(size, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._array: Int32Array = self._host.numpy()
        self._uploaded = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def _places(self, num_tokens: int, num_sequences: int, num_logits: int) -> _Places:
        sizes = [num_tokens, num_tokens, num_sequences + 1, num_sequences, num_sequences, num_logits]
        sizes += [self._num_groups * _padded(num_tokens)]
        begins = np.cumsum([0, *(_padded(size) for size in sizes)]).tolist()
        return _Places(*begins)

    def upload(
        self, scheduled: Sequence[ScheduledRequest], logit_rows: Sequence[int], padded_to: int = 0, least: int = 0
    ) -> StepLayout:
        """Send a step on its way. `padded_to`: fill a step of single tokens up to so many sequences, all with logits.
        `least`: fill any step up to so many sequences, those without tokens, and to so many wanted rows.

        The kernels that read it may be launched at once: they come behind the copy on the device's queue.
        """
        counts = np.fromiter((s.num_tokens for s in scheduled), np.int32, len(scheduled))
        starts = np.fromiter((s.start for s in scheduled), np.int32, len(scheduled))
        rows = np.fromiter((self.tables.update(s.request) for s in scheduled), np.int32, len(scheduled))
        num_tokens = padded_to or int(counts.sum())
        num_sequences = padded_to or max(len(scheduled), least)
        places = self._places(num_tokens, num_sequences, padded_to or max(len(logit_rows), least))
        self._wait_for_last_upload()
        self._write(places, scheduled, counts, starts, rows, logit_rows, num_tokens)
        self._send(places)
        return layout_of(counts.tolist(), (starts + counts).tolist(), self._view(places.rows, num_sequences))

    def _wait_for_last_upload(self) -> None:
        """Done long ago, but for steps that follow one another without a token between them."""
        if self._uploaded is not None:
            self._uploaded.synchronize()

    def _write(
        self,
        places: _Places,
        scheduled: Sequence[ScheduledRequest],
        counts: Int32Array,
        starts: Int32Array,
        rows: Int32Array,
        logit_rows: Sequence[int],
        num_tokens: int,
    ) -> None:
        array, used, size = self._array, int(counts.sum()), len(scheduled)
        # Padding: position 0 of an empty context, written nowhere; its sequences begin and end behind all others.
        array[: places.slots] = 0
        array[places.query_start : places.context_len] = used
        array[places.slots : places.changes] = -1
        query_start = np.zeros(size + 1, dtype=np.int32)
        np.cumsum(counts, out=query_start[1:])
        sequence = np.repeat(np.arange(size, dtype=np.int32), counts)
        positions = np.arange(used, dtype=np.int32) - query_start[sequence] + starts[sequence]
        array[places.token_ids : places.token_ids + used] = _token_ids(scheduled, used)
        array[places.positions : places.positions + used] = positions
        array[places.query_start : places.query_start + size + 1] = query_start
        array[places.context_len : places.context_len + size] = starts + counts
        array[places.rows : places.rows + size] = rows
        array[places.logit_rows : places.logit_rows + len(logit_rows)] = logit_rows
        for group in range(self._num_groups):
            at = places.slots + group * _padded(num_tokens)
            array[at : at + used] = self.tables.slots(group, rows[sequence], positions, self._block_size)

    def _send(self, places: _Places) -> None:
        where, blocks = self.tables.take_changes()
        count = len(where)
        end = places.changes
        if 0 < count <= CHANGES_IN_UPLOAD:
            self._array[end : end + count] = where
            self._array[end + count : end + 2 * count] = blocks
            end += 2 * count
        self._device[:end].copy_(self._host[:end], non_blocking=True)
        if self._uploaded is not None:
            self._uploaded.record()
        if count > CHANGES_IN_UPLOAD:
            both = torch.from_numpy(np.stack((where, blocks))).to(self._device.device)
        elif count:
            both = self._device[places.changes : end].view(2, count)
        else:
            return
        self.tables.on_device.view(-1).index_copy_(0, both[0].long(), both[1])

    def tensors(self, num_tokens: int, num_sequences: int, num_logits: int) -> StepTensors:
        """Views of the device's memory, the same for every upload of these sizes: a recorded graph keeps them."""
        places = self._places(num_tokens, num_sequences, num_logits)
        return StepTensors(
            token_ids=self._view(places.token_ids, num_tokens),
            positions=self._view(places.positions, num_tokens),
            query_start=self._view(places.query_start, num_sequences + 1),
            context_len=self._view(places.context_len, num_sequences),
            groups=[
                GroupTensors(
                    self.tables.on_device[group], self._view(places.slots + group * _padded(num_tokens), num_tokens)
                )
                for group in range(self._num_groups)
            ],
            logit_rows=self._view(places.logit_rows, num_logits),
        )

    def table_rows(self, num_tokens: int, num_sequences: int, num_logits: int) -> Tensor:
        """int32 [S], beside `tensors`."""
        return self._view(self._places(num_tokens, num_sequences, num_logits).rows, num_sequences)

    def _view(self, begin: int, length: int) -> Tensor:
        return self._device[begin : begin + length]


def _token_ids(scheduled: Sequence[ScheduledRequest], total: int) -> Int32Array:
    if total == len(scheduled):
        return np.fromiter((s.request.token_ids[s.start] for s in scheduled), np.int32, total)
    parts = [s.request.token_ids[s.start : s.start + s.num_tokens] for s in scheduled]
    return np.fromiter((token for part in parts for token in part), np.int32, total)
