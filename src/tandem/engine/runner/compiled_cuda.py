"""Runs the compiled graphs of an engine for GPUs: decode steps as CUDA graphs by bucket, all others as they come.

Three builds of one network: one token; any number of sequences with one token each; and anything. Export takes open
sizes from 2 on, so a step of the third kind is filled up to two sequences and two wanted rows; a decode step is filled
up to its bucket. Padding is a sequence of no tokens, or a token of an empty context that is written to slot -1.

Block tables stay on the device, a row a seated request. A graph reads them by sequence, so the step's rows are gathered
first, within the recorded graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tandem.core.request import Request
from tandem.engine.kernels.ops.kv_cache import split_cache
from tandem.engine.kernels.triton.sampler import sample
from tandem.engine.kernels.triton.sampling import argmax
from tandem.engine.kvcache.manager import BlockCopy
from tandem.engine.messages import TokenLogprobs
from tandem.engine.runner.base import StepResult
from tandem.engine.runner.cuda import buckets
from tandem.engine.runner.cuda_graphs import Capture, Recordings
from tandem.engine.runner.cuda_inputs import DeviceTables, StepInputs
from tandem.engine.runner.graphs import Graph
from tandem.engine.runner.rows import PromptPart, wanted_rows
from tandem.engine.sampling.logprobs import token_logprobs
from tandem.engine.scheduler import StepPlan

LEAST = 2
"""Sequences and wanted rows of a step that isn't a decode step."""


@dataclass(frozen=True, slots=True)
class StepGraphs:
    """Each takes the flattened inputs of `compiler/network.py:Network.forward` and gives logits, float32 [R, V]."""

    single: Graph
    decode: Graph
    mixed: Graph
    constants: dict[str, Tensor]
    """What the graphs read; kept alive here."""


@dataclass(frozen=True, slots=True)
class Sizes:
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    block_size: int
    num_groups: int


class _Outputs(NamedTuple):
    """In a recorded graph they lie at fixed addresses, and the next replay overwrites them."""

    logits: Tensor
    """float32 [R, V]."""
    greedy: Tensor
    """int32 [R]."""


class CompiledCudaRunner:
    """`caches`: one for each layer of a group, as `ops/kv_cache.py` lays them out; this runner owns them."""

    def __init__(
        self,
        graphs: StepGraphs,
        caches: list[Tensor],
        sizes: Sizes,
        *,
        name: str,
        capture: Capture | None,
    ) -> None:
        self._graphs, self._caches, self._num_groups = graphs, caches, sizes.num_groups
        device = caches[0].device
        max_blocks = -(-sizes.max_model_len // sizes.block_size)
        self._tables = DeviceTables(sizes.num_groups, sizes.max_num_seqs, max_blocks, device)
        self.buckets = buckets(sizes.max_num_seqs)
        most_seqs = max(sizes.max_num_seqs, self.buckets[-1], LEAST)
        most_tokens = max(sizes.max_num_batched_tokens, most_seqs)
        self._inputs = StepInputs(self._tables, sizes.num_groups, most_seqs, most_tokens, sizes.block_size)
        width = self._tables.on_device.shape[2]
        self._gathered = torch.zeros((sizes.num_groups, most_seqs, width), dtype=torch.int32, device=device)
        with torch.inference_mode():
            self.recordings = None if capture is None else Recordings(self._decode, self.buckets, capture)
        self.name = name if self.recordings is None else f"{name}, {_shown(self.recordings)}"

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        for request in plan.preempted:
            self._tables.release(request)
        self._copy_blocks(plan.block_copies)
        wanted = wanted_rows(plan.scheduled)
        prompt_rows = [row for part in wanted.prompt_parts for row in range(part.begin, part.end)]
        count = len(wanted.logit_rows)
        if count == plan.num_tokens <= self.buckets[-1] and not prompt_rows:
            outputs = self._run_decode(plan)
        else:
            outputs = self._run_mixed(plan, [*wanted.logit_rows, *prompt_rows])
        samples = sample(outputs.logits[:count], wanted.samples, outputs.greedy)
        scores = _prompt_logprobs(outputs.logits[count:], wanted.prompt_parts)
        return StepResult(samples.token_ids, samples.logprobs, scores)

    def release(self, request: Request) -> None:
        self._tables.release(request)

    def _run_decode(self, plan: StepPlan) -> _Outputs:
        """Every token is some sequence's last, and its logits are wanted."""
        size = next(bucket for bucket in self.buckets if bucket >= plan.num_tokens)
        self._inputs.upload(plan.scheduled, range(plan.num_tokens), padded_to=size)
        recording = None if self.recordings is None else self.recordings.get(size)
        if recording is None:
            return self._decode(size)
        recording.replay()
        return recording.outputs

    def _decode(self, size: int) -> _Outputs:
        """A step of `size` sequences with one token each, whatever the upload holds."""
        return self._run(self._graphs.single if size == 1 else self._graphs.decode, size, size, size)

    def _run_mixed(self, plan: StepPlan, rows: Sequence[int]) -> _Outputs:
        graph, least = (self._graphs.single, 1) if plan.num_tokens == 1 else (self._graphs.mixed, LEAST)
        self._inputs.upload(plan.scheduled, rows, least=least)
        return self._run(graph, plan.num_tokens, max(len(plan.scheduled), least), max(len(rows), least))

    def _run(self, graph: Graph, num_tokens: int, num_sequences: int, num_logits: int) -> _Outputs:
        step = self._inputs.tensors(num_tokens, num_sequences, num_logits)
        rows = self._inputs.table_rows(num_tokens, num_sequences, num_logits)
        tables = [gathered[:num_sequences] for gathered in self._gathered]
        for group, table in enumerate(tables):
            torch.index_select(self._tables.on_device[group], 0, rows, out=table)
        slots = [group.slot_mapping for group in step.groups]
        (logits,) = graph(
            [
                *(step.token_ids, step.positions, step.query_start, step.context_len),
                *tables,
                *slots,
                step.logit_rows,
                *self._caches,
            ]
        )
        return _Outputs(logits, argmax(logits).token)

    def _copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """All at once: every source is read before any target is written, which equals doing them in order."""
        if not copies:
            return
        sources, targets = torch.tensor(copies, device=self._caches[0].device).unbind(1)
        for cache in self._caches:
            for memory in split_cache(cache):
                if memory is not None:
                    memory[:, targets] = memory[:, sources]


def _prompt_logprobs(logits: Tensor, parts: Sequence[PromptPart]) -> dict[Request, list[TokenLogprobs | None]]:
    found: dict[Request, list[TokenLogprobs | None]] = {}
    at = 0
    for part in parts:
        count = part.end - part.begin
        found[part.request] = list(token_logprobs(logits[at : at + count], part.next_tokens, part.num_top))
        at += count
    return found


def _shown(recordings: Recordings[_Outputs]) -> str:
    return f"{len(recordings)} CUDA graphs of {recordings.num_bytes / (1 << 20):,.0f} MiB"
