"""Runs the network on a GPU with Triton kernels; steps in which every sequence computes one token replay CUDA graphs.

A decode step of an 8B model is some 300 launches of a few microseconds each, which Python can't issue as fast as the
GPU runs them. A CUDA graph replays them all with one call, but with fixed sizes and addresses: so there is one for each
of a few batch sizes, and a batch is filled up to the next with tokens that are written nowhere (slot -1).

On a CPU the same code runs in Triton's interpreter, without graphs: that is how it is tested.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tandem.core.request import Request
from tandem.engine.kernels.triton.attention import StepLayout
from tandem.engine.kernels.triton.decoder import TritonDecoder
from tandem.engine.kernels.triton.language import PagedKV
from tandem.engine.kernels.triton.sampler import sample
from tandem.engine.kernels.triton.sampling import argmax
from tandem.engine.kvcache.manager import BlockCopy
from tandem.engine.messages import TokenLogprobs
from tandem.engine.runner.base import StepResult
from tandem.engine.runner.cuda_inputs import DeviceTables, StepInputs
from tandem.engine.runner.rows import WantedRows, wanted_rows
from tandem.engine.sampling.logprobs import token_logprobs
from tandem.engine.scheduler import StepPlan

LARGEST_BUCKET = 256


class _Outputs(NamedTuple):
    """Of one step. In a recorded graph they lie at fixed addresses, and the next replay overwrites them."""

    hidden: Tensor
    """[T, H]."""
    logits: Tensor
    """float32 [R, V]."""
    greedy: Tensor
    """int32 [R]."""


class CudaRunner:
    """`caches`: one for each layer of a group; this runner owns them, the inputs' buffers and the graphs."""

    def __init__(
        self,
        decoder: TritonDecoder,
        caches: list[PagedKV],
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
    ) -> None:
        on_gpu = decoder.device.type == "cuda"
        device = torch.cuda.get_device_name(decoder.device) if on_gpu else "interpreter"
        self.name = f"paged (triton, {device})"
        self._decoder = decoder
        self._caches = caches
        self._max_model_len = max_model_len
        block_size = caches[0].data.shape[3]
        num_groups = len(decoder.groups)
        self._tables = DeviceTables(num_groups, max_num_seqs, -(-max_model_len // block_size), decoder.device)
        self._buckets = buckets(max_num_seqs)
        most = max(max_num_batched_tokens, self._buckets[-1])
        self._inputs = StepInputs(self._tables, num_groups, max(max_num_seqs, self._buckets[-1]), most, block_size)
        self._graphs = _record(self._decode, self._buckets) if on_gpu else {}

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        for request in plan.preempted:
            self._tables.release(request)
        self._copy_blocks(plan.block_copies)
        wanted = wanted_rows(plan.scheduled)
        if len(wanted.logit_rows) == plan.num_tokens <= self._buckets[-1]:
            outputs = self._run_decode(plan)
        else:
            outputs = self._run_mixed(plan, wanted)
        samples = sample(outputs.logits[: len(wanted.logit_rows)], wanted.samples, outputs.greedy)
        return StepResult(samples.token_ids, samples.logprobs, self._prompt_logprobs(outputs.hidden, wanted))

    def release(self, request: Request) -> None:
        self._tables.release(request)

    def _copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """All at once: every source is read before any target is written, which equals doing them in order."""
        if not copies:
            return
        sources, targets = torch.tensor(copies, device=self._decoder.device).unbind(1)
        for kv in self._caches:
            for memory in (kv.data, kv.scales):
                if memory is not None:
                    memory[:, targets] = memory[:, sources]

    def _run_decode(self, plan: StepPlan) -> _Outputs:
        """Every token is some sequence's last, and its logits are wanted."""
        size = next(bucket for bucket in self._buckets if bucket >= plan.num_tokens)
        self._inputs.upload(plan.scheduled, range(plan.num_tokens), padded_to=size)
        if size not in self._graphs:
            return self._decode(size)
        graph, outputs = self._graphs[size]
        graph.replay()
        return outputs

    def _decode(self, size: int) -> _Outputs:
        """A step of `size` sequences with one token each, whatever the upload holds; contexts up to the longest."""
        step = self._inputs.tensors(size, size, size)
        layout = StepLayout(size, size, 1, self._max_model_len, self._inputs.table_rows(size, size, size))
        hidden = self._decoder.forward(step, layout, self._caches)
        logits = self._decoder.logits(hidden)
        return _Outputs(hidden, logits, argmax(logits).token)

    def _run_mixed(self, plan: StepPlan, wanted: WantedRows) -> _Outputs:
        num_logits = len(wanted.logit_rows)
        layout = self._inputs.upload(plan.scheduled, wanted.logit_rows)
        step = self._inputs.tensors(plan.num_tokens, len(plan.scheduled), num_logits)
        hidden = self._decoder.forward(step, layout, self._caches)
        if not num_logits:
            nothing = hidden.new_empty((0, self._decoder.spec.vocab_size), dtype=torch.float32)
            return _Outputs(hidden, nothing, nothing.new_empty(0, dtype=torch.int32))
        logits = self._decoder.logits(hidden.index_select(0, step.logit_rows))
        return _Outputs(hidden, logits, argmax(logits).token)

    def _prompt_logprobs(self, hidden: Tensor, wanted: WantedRows) -> dict[Request, list[TokenLogprobs | None]]:
        """Few positions at a time (the scheduler sees to it): each is a row of floats over the vocabulary."""
        return {
            part.request: list(
                token_logprobs(self._decoder.logits(hidden[part.begin : part.end]), part.next_tokens, part.num_top)
            )
            for part in wanted.prompt_parts
        }


def buckets(max_num_seqs: int) -> list[int]:
    """Batch sizes with a graph each: powers of two until they hold all seats, 256 at most."""
    sizes = [1]
    while sizes[-1] < min(max_num_seqs, LARGEST_BUCKET):
        sizes.append(2 * sizes[-1])
    return sizes


def _record(decode: Callable[[int], _Outputs], sizes: list[int]) -> dict[int, tuple[torch.cuda.CUDAGraph, _Outputs]]:
    """A graph for each size, largest first: they run one at a time, so the smaller ones live in its memory.

    Nothing is in KV memory yet, so it doesn't matter what these first runs write.
    """
    graphs: dict[int, tuple[torch.cuda.CUDAGraph, _Outputs]] = {}
    pool = torch.cuda.graph_pool_handle()
    for size in reversed(sizes):
        # Once without recording: Triton compiles, and cuBLAS takes its workspace.
        decode(size)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            outputs = decode(size)
        graphs[size] = graph, outputs
    return graphs
