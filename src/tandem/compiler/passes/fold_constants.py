"""What depends on weights only is computed once, here: the tables of RoPE; the scale of embeddings, into their table.

    before  table = cat(cos(arange(n) · f), sin(arange(n) · f)); cos_sin = table[positions]
    after   cos_sin = table[positions]                                  table: a constant, "rope.frequencies_folded"

    before  x = embedding(table, token_ids) · scale
    after   x = embedding(table, token_ids)                             where the LM head doesn't share the table

Dequantised weights are left alone: folding them would undo the quantisation.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from tandem.compiler.passes.graph import add_constant, aten, calls, constant, is_call, is_constant, sweep

FACTORIES = (aten.arange.default, aten.arange.start, aten.arange.start_step)
LEFT_ALONE = (torch.ops.tandem.dequantize.default,)


def run(module: GraphModule) -> int:
    count = _fold_expressions(module) + _fold_embedding_scale(module)
    sweep(module)
    return count


def _fold_expressions(module: GraphModule) -> int:
    """Every largest expression over constants becomes one constant."""
    folded = _constant_nodes(module)
    ends = [node for node in folded if _sources(node) and any(user not in folded for user in node.users)]
    for node in ends:
        with module.graph.inserting_before(node):
            new = add_constant(module, _free_name(module, _sources(node)[0]), _evaluate(module, node), node)
        node.replace_all_uses_with(new)
    return len(ends)


def _free_name(module: GraphModule, source: Node) -> str:
    """Said after the first weight in the expression; numbered from the second one on."""
    name = f"{source.target}_folded"
    taken = {existing for existing, _ in module.named_buffers()}
    return next(n for n in (name, *(f"{name}_{i}" for i in range(2, len(taken) + 3))) if n not in taken)


def _constant_nodes(module: GraphModule) -> dict[Node, None]:
    """Calls that give the same in every step."""
    found: dict[Node, None] = {}  # in order
    for node in module.graph.nodes:
        if node.op != "call_function" or is_call(node, *LEFT_ALONE) or _writes(node):
            continue
        inputs = node.all_input_nodes
        if (inputs or is_call(node, *FACTORIES)) and all(is_constant(i) or i in found for i in inputs):
            found[node] = None
    return found


def _writes(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def _sources(node: Node) -> list[Node]:
    """Constants that the expression reads, in order."""
    if is_constant(node):
        return [node]
    return [source for inner in node.all_input_nodes for source in _sources(inner)]


def _evaluate(module: GraphModule, node: Node) -> Tensor:
    def computed(argument: Node) -> Any:
        return constant(module, argument) if is_constant(argument) else _evaluate(module, argument)

    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), computed)
    assert callable(node.target)
    with torch.no_grad():
        result: Tensor = node.target(*args, **kwargs)
    return result


def _fold_embedding_scale(module: GraphModule) -> int:
    """Where the table is used for nothing else. Rounding is the same: each number is scaled and rounded once."""
    count = 0
    for node in calls(module.graph, aten.mul.Tensor):
        rows, factor = node.args
        if not (is_call(rows, aten.embedding.default) and isinstance(factor, float) and isinstance(rows, Node)):
            continue
        table = rows.args[0]
        if not (is_constant(table) and isinstance(table, Node)) or len(table.users) != 1 or len(rows.users) != 1:
            continue
        with module.graph.inserting_before(rows):
            scaled = add_constant(module, _free_name(module, table), constant(module, table) * factor, table)
        rows.replace_input_with(table, scaled)
        node.replace_all_uses_with(rows)
        count += 1
    return count
