"""Runs compiled graphs of a CPU engine: the decoder that the runner steps, with the graph between it and the kernels.

Export takes dynamic sizes from 2 on. So there are two graphs: one for a single token of a single sequence, and one for
everything else, to which sequences and sampled rows are padded up to two. The padding is not computed: the operator is
told what is real.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tandem.engine.kernels.cpu.decoder import CpuDecoder
from tandem.engine.kernels.cpu.native import SampleArgs
from tandem.engine.models.spec import ModelSpec
from tandem.engine.runner.graphs import Graph
from tandem.engine.runner.stack_op import session


@dataclass(frozen=True, slots=True)
class Graphs:
    """The two builds of one network, over one weight image."""

    single: Graph
    """One token, one sequence, one sampled row."""
    batch: Graph
    """From two of each on."""
    weights: Tensor
    """The packed image, uint8, mapped from the engine file; neither graph copies it."""


class CompiledDecoder:
    """What `NativeRunner` steps. Owns `native` (KV pool, scratch, threads), which runs inside the graphs' operator."""

    def __init__(self, native: CpuDecoder, graphs: Graphs) -> None:
        self._native = native
        self._graphs = graphs
        self._spare_logits = torch.empty((2, native.spec.vocab_size))
        """Given where no logits are wanted, or where one row is and the graph takes two."""

    @property
    def spec(self) -> ModelSpec:
        return self._native.spec

    @property
    def variant(self) -> str:
        return self._native.variant

    @property
    def block_size(self) -> int:
        return self._native.block_size

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
    ) -> None:
        """Like `CpuDecoder.step`."""
        sequences, samples = len(context_len), len(sample_rows)
        single = len(token_ids) == 1
        least = 1 if single else 2
        logits = logits_out if logits_out is not None and samples >= least else self._spare_logits[:least]
        with session(self._graphs.weights, self._native):
            (chosen,) = (self._graphs.single if single else self._graphs.batch)(
                [
                    torch.tensor([sequences, samples, logits_out is not None], dtype=torch.int32),
                    token_ids,
                    positions,
                    _padded(query_start, least + 1),
                    _padded(context_len, least),
                    *(_padded(table, least) for table in block_tables),
                    *slot_mapping,
                    _padded(sample_rows, least),
                    logits,
                ]
            )
        argmax_out[:samples] = chosen[:samples]
        if logits_out is not None and logits is not logits_out:
            logits_out.copy_(logits[:samples])

    def sample(self, arguments: SampleArgs) -> None:
        self._native.sample(arguments)

    def sample_scratch_bytes(self, vocab_size: int) -> int:
        return self._native.sample_scratch_bytes(vocab_size)

    def copy_block(self, source: int, target: int) -> None:
        self._native.copy_block(source, target)

    def close(self) -> None:
        self._native.close()


def _padded(tensor: Tensor, rows: int) -> Tensor:
    if len(tensor) >= rows:
        return tensor
    return torch.cat([tensor, tensor.new_zeros((rows - len(tensor), *tensor.shape[1:]))])
