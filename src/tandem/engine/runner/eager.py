"""Runs the network operation by operation in torch, on KV it allocates once. The paged engine's plain runner."""

from __future__ import annotations

import torch
from torch import Tensor

from tandem.core.request import Request
from tandem.engine.kernels.step import GroupTensors, StepTensors
from tandem.engine.messages import TokenLogprobs
from tandem.engine.models.decoder import Decoder
from tandem.engine.runner.base import StepResult
from tandem.engine.runner.batch import BlockTableRows, build_arrays
from tandem.engine.runner.rows import WantedRows, wanted_rows
from tandem.engine.sampling.logprobs import token_logprobs
from tandem.engine.sampling.sampler import sample
from tandem.engine.scheduler import StepPlan


class EagerRunner:
    """`caches`: one tensor for each layer of a group, [2, blocks, K, block_size, D]; this runner owns them."""

    def __init__(self, decoder: Decoder, caches: list[Tensor], tables: BlockTableRows, reason: str) -> None:
        self.name = f"paged (torch reference: {reason})"
        self._decoder = decoder
        self._caches = caches
        self._tables = tables
        self._block_size = caches[0].shape[3]

    def execute(self, plan: StepPlan) -> StepResult:
        for request in plan.preempted:
            self._tables.release(request)
        for copy in plan.block_copies:
            for cache in self._caches:
                cache[:, copy.target] = cache[:, copy.source]
        wanted = wanted_rows(plan.scheduled)
        step = self._build(plan, wanted)
        hidden = self._decoder.forward(step, self._caches)
        logits = self._decoder.logits(hidden[step.logit_rows])
        samples = sample(logits, wanted.samples)
        return StepResult(samples.token_ids, samples.logprobs, self._prompt_logprobs(hidden, wanted))

    def release(self, request: Request) -> None:
        self._tables.release(request)

    def _build(self, plan: StepPlan, wanted: WantedRows) -> StepTensors:
        arrays = build_arrays(plan.scheduled, self._tables, self._block_size)
        groups = [
            GroupTensors(torch.from_numpy(table), torch.from_numpy(slots).long())
            for table, slots in zip(arrays.block_tables, arrays.slot_mappings, strict=True)
        ]
        return StepTensors(
            token_ids=torch.from_numpy(arrays.token_ids),
            positions=torch.from_numpy(arrays.positions),
            query_start=torch.from_numpy(arrays.query_start),
            context_len=torch.from_numpy(arrays.context_len),
            groups=groups,
            logit_rows=torch.tensor(wanted.logit_rows, dtype=torch.int64),
        )

    @torch.inference_mode()
    def _prompt_logprobs(self, hidden: Tensor, wanted: WantedRows) -> dict[Request, list[TokenLogprobs | None]]:
        """Few positions at a time (the scheduler sees to it): each is a row of floats over the vocabulary."""
        return {
            part.request: list(
                token_logprobs(self._decoder.logits(hidden[part.begin : part.end]), part.next_tokens, part.num_top)
            )
            for part in wanted.prompt_parts
        }
