"""From a network to a graph: torch.export, with the sizes of a step left open, or fixed at one token.

torch.export takes sizes 0 and 1 for special, so open sizes start at 2 and a step of a single token is a graph of its
own. The graph keeps our operators as they stand, the writing ones too: nothing is made functional before the passes
ran.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule

from tandem.compiler.network import Network
from tandem.core.errors import ModelUnsupported


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest step that a graph is for. All at least 2."""

    max_tokens: int
    max_sequences: int
    max_blocks: int
    """Blocks of the longest context: columns of a block table."""


@dataclass(frozen=True, slots=True)
class Caches:
    """How many caches there are and the shape of each: [2, blocks, K, block_size, D]."""

    count: int
    num_blocks: int
    num_kv_heads: int
    block_size: int
    head_dim: int
    dtype: torch.dtype

    def allocate(self, device: torch.device | str = "cpu") -> list[Tensor]:
        shape = (2, self.num_blocks, self.num_kv_heads, self.block_size, self.head_dim)
        return [torch.zeros(shape, dtype=self.dtype, device=device) for _ in range(self.count)]


def export_network(network: Network, limits: Limits, caches: Caches) -> ExportedProgram:
    """The graph of a step of 2 … `max_tokens` tokens. Inputs are those of `Network.forward`, logits its output."""
    return _export(
        network, example(limits, caches, len(network.groups)), open_sizes(limits, caches, len(network.groups))
    )


def export_single(network: Network, limits: Limits, caches: Caches) -> ExportedProgram:
    """The graph of one token of one sequence; only the length of its block table is open."""
    groups = len(network.groups)
    return _export(network, example(limits, caches, groups, num_tokens=1), _single_sizes(limits, caches, groups))


def export_fused(graph: GraphModule, limits: Limits, caches: Caches, groups: int, *, single: bool) -> ExportedProgram:
    """A graph that passes have rewritten, as a program again, with the sizes that the network's own graph had."""
    sizes = _single_sizes(limits, caches, groups) if single else open_sizes(limits, caches, groups)
    return _export(graph, example(limits, caches, groups, num_tokens=1 if single else 4), sizes)


def graph_of(program: ExportedProgram) -> GraphModule:
    """The graph to rewrite: weights are attributes by name, and writing operators stand where they were called."""
    graph = program.module(check_guards=False)
    assert isinstance(graph, GraphModule)
    for node in list(graph.graph.nodes):
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            graph.graph.erase_node(node)
    graph.recompile()
    return graph


def example(limits: Limits, caches: Caches, groups: int, *, num_tokens: int = 4) -> tuple[Any, ...]:
    """Inputs of `Network.forward` for a small step: one token, or 4 tokens of 2 sequences."""
    sequences = 1 if num_tokens == 1 else 2
    rows = 1 if num_tokens == 1 else 3
    table = torch.zeros(sequences, limits.max_blocks, dtype=torch.int32)
    # Distinct tensors: torch.export would take equal ones for one input.
    return (
        torch.zeros(num_tokens, dtype=torch.int32),
        torch.zeros(num_tokens, dtype=torch.int32),
        torch.tensor([0, *range(num_tokens - sequences + 1, num_tokens + 1)], dtype=torch.int32),
        torch.ones(sequences, dtype=torch.int32),
        [table.clone() for _ in range(groups)],
        [torch.zeros(num_tokens, dtype=torch.int64) for _ in range(groups)],
        torch.zeros(rows, dtype=torch.int64),
        caches.allocate(),
    )


def open_sizes(limits: Limits, caches: Caches, groups: int) -> tuple[Any, ...]:
    """`dynamic_shapes` of torch.export for a step of several tokens."""
    tokens = Dim("tokens", min=2, max=limits.max_tokens)
    sequences = Dim("sequences", min=1, max=limits.max_sequences)
    rows = Dim("rows", min=1, max=limits.max_tokens)
    blocks = Dim("blocks", min=1, max=limits.max_blocks)
    return (
        {0: tokens},
        {0: tokens},
        {0: sequences + 1},
        {0: sequences},
        [{0: sequences, 1: blocks}] * groups,
        [{0: tokens}] * groups,
        {0: rows},
        [None] * caches.count,
    )


def _single_sizes(limits: Limits, caches: Caches, groups: int) -> tuple[Any, ...]:
    blocks = Dim("blocks", min=1, max=limits.max_blocks)
    return (None, None, None, None, [{1: blocks}] * groups, [None] * groups, None, [None] * caches.count)


def _export(module: nn.Module, inputs: tuple[Any, ...], sizes: tuple[Any, ...]) -> ExportedProgram:
    try:
        with torch.no_grad():
            return torch.export.export(module, inputs, dynamic_shapes=sizes, strict=False)
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelUnsupported(
            f"This network can't be exported to a graph: {reason} The paged engine runs it: tandem serve MODEL."
        ) from error
