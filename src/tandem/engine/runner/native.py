"""Runs a whole step in one call of a native decoder: the paged engine's runner wherever the kernels can be had, and the
compiled engine's, whose decoder goes through compiled graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from tandem.core.request import Request
from tandem.engine.messages import TokenLogprobs
from tandem.engine.models.spec import ModelSpec
from tandem.engine.runner.base import StepResult
from tandem.engine.runner.batch import BlockTableRows, StepArrays, build_arrays
from tandem.engine.runner.rows import PromptPart, WantedRows, wanted_rows
from tandem.engine.sampling.logprobs import token_logprobs
from tandem.engine.sampling.native import Chooser, NativeSampler
from tandem.engine.scheduler import StepPlan


class StepDecoder(Chooser, Protocol):
    """A decoder that owns weights and KV. `CpuDecoder` says what the arguments are."""

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def block_size(self) -> int: ...

    def step(
        self,
        token_ids: Tensor,
        positions: Tensor,
        query_start: Tensor,
        context_len: Tensor,
        block_tables: Sequence[Tensor],
        slot_mapping: Sequence[Tensor],
        sample_rows: Tensor,
        *,
        argmax_out: Tensor,
        logits_out: Tensor | None = None,
    ) -> None: ...

    def copy_block(self, source: int, target: int) -> None: ...


class NativeRunner:
    """Logits are written only where something other than the argmax is wanted."""

    def __init__(self, decoder: StepDecoder, tables: BlockTableRows, name: str) -> None:
        self.name = name
        self._decoder = decoder
        self._tables = tables
        self._sampler = NativeSampler(decoder)
        self._logits = torch.empty((0, decoder.spec.vocab_size))

    def execute(self, plan: StepPlan) -> StepResult:
        for request in plan.preempted:
            self._tables.release(request)
        for copy in plan.block_copies:
            self._decoder.copy_block(copy.source, copy.target)
        wanted = wanted_rows(plan.scheduled)
        arrays = build_arrays(plan.scheduled, self._tables, self._decoder.block_size)
        if all(row.is_plain for row in wanted.samples) and not wanted.prompt_parts:
            argmax = self._step(arrays, wanted.logit_rows, None)
            return StepResult([argmax[row.logit_row] for row in wanted.samples])
        return self._sample(arrays, wanted)

    def release(self, request: Request) -> None:
        self._tables.release(request)

    def _sample(self, arrays: StepArrays, wanted: WantedRows) -> StepResult:
        prompt_rows = [row for part in wanted.prompt_parts for row in range(part.begin, part.end)]
        rows = wanted.logit_rows + prompt_rows
        logits = self._room_for(len(rows))
        argmax = self._step(arrays, rows, logits)
        samples = self._sampler.sample(logits[: len(wanted.logit_rows)], wanted.samples, argmax)
        scores = _prompt_logprobs(logits[len(wanted.logit_rows) :], wanted.prompt_parts)
        return StepResult(samples.token_ids, samples.logprobs, scores)

    def _room_for(self, num_rows: int) -> Tensor:
        """A view of memory that is kept from step to step: fresh pages would cost more than writing them."""
        if len(self._logits) < num_rows:
            self._logits = torch.empty((num_rows, self._decoder.spec.vocab_size))
        return self._logits[:num_rows]

    def _step(self, arrays: StepArrays, rows: list[int], logits: Tensor | None) -> list[int]:
        argmax = torch.empty(len(rows), dtype=torch.int32)
        self._decoder.step(
            torch.from_numpy(arrays.token_ids),
            torch.from_numpy(arrays.positions),
            torch.from_numpy(arrays.query_start),
            torch.from_numpy(arrays.context_len),
            [torch.from_numpy(table) for table in arrays.block_tables],
            [torch.from_numpy(slots) for slots in arrays.slot_mappings],
            torch.tensor(rows, dtype=torch.int32),
            argmax_out=argmax,
            logits_out=logits,
        )
        chosen: list[int] = argmax.tolist()
        return chosen


def _prompt_logprobs(logits: Tensor, parts: list[PromptPart]) -> dict[Request, list[TokenLogprobs | None]]:
    found: dict[Request, list[TokenLogprobs | None]] = {}
    at = 0
    for part in parts:
        count = part.end - part.begin
        found[part.request] = list(token_logprobs(logits[at : at + count], part.next_tokens, part.num_top))
        at += count
    return found
