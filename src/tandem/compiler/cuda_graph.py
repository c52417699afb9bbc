"""From the fused graph to the three programs of a GPU engine: what a GPU's kernels want changed, and the sizes.

    single   one token of one sequence
    decode   B sequences with one token each, all with logits; CUDA graphs are recorded of it by batch size
    mixed    anything else, from two tokens on

Blocks of the KV cache and their size stay open, so memory is divided when the engine is served.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule, Node

from tandem.compiler.export import Caches, Limits, open_sizes
from tandem.compiler.passes.graph import add_constant, arguments, calls, constant, sweep
from tandem.core.errors import ModelUnsupported
from tandem.engine.kernels.ops.kv_cache import cache_shape
from tandem.engine.kernels.ops.nibbles import PACKED, UNIT, pack_nibbles

TANDEM = torch.ops.tandem
SINGLE, DECODE, MIXED = "single", "decode", "mixed"
_QUANTIZED = (
    TANDEM.quantized_linear.default,
    TANDEM.int8_linear.default,
    TANDEM.quantized_embedding.default,
)
_MOST = 1 << 20


def lower_for_gpu(graph: GraphModule) -> dict[str, int]:
    """Rewrites in place; what was rewritten, and how often."""
    counts = {
        "inputs of weight-only products left in floats": _widen_inputs(graph),
        "4-bit codes packed two a byte": _pack(graph),
    }
    sweep(graph)
    return counts


def _widen_inputs(graph: GraphModule) -> int:
    """Rounding inputs by groups of 32 serves a CPU's integer products; a GPU widens the weights instead, which is more
    exact besides."""
    found = [node for node in calls(graph.graph, _QUANTIZED[0]) if arguments(node)["activations"] == "int8_group"]
    for node in found:
        _set(node, "activations", "float")
    return len(found)


def _pack(graph: GraphModule) -> int:
    packed: dict[str, str] = {}
    for node in calls(graph.graph, *_QUANTIZED):
        given = arguments(node)
        codes = given["codes"]
        if given["kind"] != "int4" or constant(graph, codes).shape[1] % UNIT:
            continue
        name = str(codes.target)
        with graph.graph.inserting_before(node):
            if name in packed:
                new = graph.graph.get_attr(packed[name])
                new.meta = dict(codes.meta)
            else:
                packed[name] = f"{name}_packed"
                new = add_constant(graph, packed[name], pack_nibbles(constant(graph, codes)), codes)
        _set(node, "codes", new)
        _set(node, "kind", PACKED)
    return len(packed)


def _set(node: Node, name: str, value: Any) -> None:
    """An argument of a call, wherever it was given."""
    if name in node.kwargs:
        node.kwargs = {**node.kwargs, name: value}
        return
    at = list(arguments(node)).index(name)
    node.args = (*node.args[:at], value, *node.args[at + 1 :])


def of_single_tokens(graph: GraphModule) -> GraphModule:
    """The graph for steps in which token i is sequence i; the weights are shared."""
    shared = {id(tensor): tensor for tensor in [*graph.buffers(), *graph.parameters()]}
    made = deepcopy(graph, shared)
    for node in calls(made.graph, TANDEM.attention.default):
        given = arguments(node) | {"one_query": True}
        node.args, node.kwargs = tuple(given.values()), {}
    made.recompile()
    return made


def export_open(
    module: nn.Module, max_tokens: int, caches: Caches, groups: int, device: torch.device
) -> ExportedProgram:
    """A step of any sequences and wanted rows, of two tokens and more; `module` takes the inputs of the network."""
    wide = Limits(max_tokens, max_tokens, _MOST)
    sizes = (*open_sizes(wide, caches, groups)[:7], [_open_cache()] * caches.count)
    return _export(module, _inputs(9, 3, caches, groups, device), sizes)


def export_steps(
    graph: GraphModule, limits: Limits, caches: Caches, groups: int, device: torch.device
) -> dict[str, ExportedProgram]:
    """The three programs. `limits.max_sequences`: the largest decode batch. The graph's weights are on `device`."""
    open_caches = [_open_cache()] * caches.count
    tables, batch = Dim("blocks", min=2, max=_MOST), Dim("batch", min=2, max=limits.max_sequences)
    decode_sizes = (
        {0: batch},
        {0: batch},
        {0: batch + 1},
        {0: batch},
        [{0: batch, 1: tables}] * groups,
        [{0: batch}] * groups,
        {0: batch},
        open_caches,
    )
    single_sizes = (None, None, None, None, [{1: tables}] * groups, [None] * groups, None, open_caches)
    singles = of_single_tokens(graph)
    return {
        SINGLE: _export(singles, _inputs(1, 1, caches, groups, device), single_sizes),
        DECODE: _export(singles, _inputs(5, 5, caches, groups, device), decode_sizes),
        MIXED: export_open(graph, limits.max_tokens, caches, groups, device),
    }


def _open_cache() -> dict[int, Any]:
    return {1: Dim("kv_blocks", min=2, max=1 << 24), 3: Dim("block_size", min=2, max=256)}


def _inputs(num_tokens: int, num_sequences: int, caches: Caches, groups: int, device: torch.device) -> tuple[Any, ...]:
    """Distinct tensors, of sizes that differ where they may: torch.export would take equal ones for the same."""

    def ints(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int32, device=device)

    rows = num_tokens if num_tokens == num_sequences else 6
    shape = cache_shape(caches.num_blocks, caches.num_kv_heads, caches.block_size, caches.head_dim, caches.dtype)
    starts = torch.arange(num_sequences + 1, dtype=torch.int32, device=device)
    return (
        ints(num_tokens),
        ints(num_tokens),
        starts,
        torch.ones(num_sequences, dtype=torch.int32, device=device),
        [ints(num_sequences, 16) for _ in range(groups)],
        [ints(num_tokens) for _ in range(groups)],
        ints(rows),
        [torch.zeros(shape, dtype=caches.dtype, device=device) for _ in range(caches.count)],
    )


def _export(graph: nn.Module, inputs: tuple[Any, ...], sizes: tuple[Any, ...]) -> ExportedProgram:
    try:
        with torch.no_grad():
            return torch.export.export(graph, inputs, dynamic_shapes=sizes, strict=False)
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelUnsupported(
            f"This network can't be exported for a GPU: {reason} The paged engine runs it: tandem serve MODEL."
        ) from error
