"""Lowering for CPUs: the fused network becomes one native operator over one packed image of its weights.

    embedding -> [add_rms_norm -> qkv -> rope_write -> attention -> o -> add_rms_norm -> gate_up -> gate -> down] * n
    -> add_rms_norm -> head
    =>
    decoder(weights, ...)

What the passes made of the graph decides what is packed: the constants are those that the matched operators read.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tandem.engine.runner.stack_op import NUM_COUNTS


class LoweredDecoder(torch.nn.Module):
    """One operator. `weights`: the packed image, uint8."""

    weights: Tensor

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.register_buffer("weights", weights)

    def forward(
        self,
        counts: Tensor,
        token_ids: Tensor,
        positions: Tensor,
        query_start: Tensor,
        context_len: Tensor,
        block_tables: list[Tensor],
        slot_mapping: list[Tensor],
        sample_rows: Tensor,
        logits: Tensor,
    ) -> Tensor:
        """Argmax [R] int32 of the sampled rows; writes `logits` where counts says so. Shapes: runner/compiled.py."""
        chosen: Tensor = torch.ops.tandem.decoder(
            self.weights,
            counts,
            token_ids,
            positions,
            query_start,
            context_len,
            block_tables,
            slot_mapping,
            sample_rows,
            logits,
        )
        return chosen


@dataclass(frozen=True, slots=True)
class GraphLimits:
    """Upper bounds of the dynamic sizes, and what is fixed."""

    max_tokens: int
    max_blocks: int
    """Blocks of the longest sequence."""
    num_groups: int
    vocab_size: int


def export_single(module: LoweredDecoder, limits: GraphLimits) -> torch.export.ExportedProgram:
    """The build for one token, one sequence and one sampled row; only the block table's length varies."""
    blocks = torch.export.Dim("blocks", min=2, max=limits.max_blocks)
    shapes = (None, None, None, None, None, [{1: blocks}] * limits.num_groups, [None] * limits.num_groups, None, None)
    return _export(module, limits, 1, 1, shapes)


def export_batch(module: LoweredDecoder, limits: GraphLimits) -> torch.export.ExportedProgram:
    """The build for everything else: two and more tokens, sequences and rows."""
    most = max(limits.max_tokens, 8)
    tokens, sequences, samples = (torch.export.Dim(n, min=2, max=most) for n in ("tokens", "sequences", "samples"))
    starts = torch.export.Dim("starts", min=3, max=most + 1)
    blocks = torch.export.Dim("blocks", min=2, max=limits.max_blocks)
    rows = torch.export.Dim("rows", min=2, max=most)
    shapes = (
        None,
        {0: tokens},
        {0: tokens},
        {0: starts},
        {0: sequences},
        [{0: sequences, 1: blocks}] * limits.num_groups,
        [{0: tokens}] * limits.num_groups,
        {0: samples},
        {0: rows},
    )
    return _export(module, limits, 7, 5, shapes)


def _export(
    module: LoweredDecoder, limits: GraphLimits, tokens: int, sequences: int, shapes: object
) -> torch.export.ExportedProgram:
    def zeros(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int32)

    # Distinct sizes, none of them 0 or 1 where they vary: export would take equal ones for the same.
    several = sequences > 1
    arguments = (
        zeros(NUM_COUNTS),
        zeros(tokens),
        zeros(tokens),
        zeros(sequences + 1),
        zeros(sequences),
        [zeros(sequences, 9) for _ in range(limits.num_groups)],
        [zeros(tokens) for _ in range(limits.num_groups)],
        zeros(4 if several else 1),
        torch.zeros(3 if several else 1, limits.vocab_size),
    )
    return torch.export.export(module, arguments, dynamic_shapes=shapes)  # type: ignore[arg-type]
