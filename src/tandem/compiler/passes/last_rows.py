"""The gather of the rows whose logits are wanted, moved up before the LM head and the final norm.

    before  logits = linear(rms_norm(x), head)[rows]
    after   logits = linear(rms_norm(x[rows]), head)

What works row by row gives the same for fewer rows. The gather climbs until the stack of layers, or until a value that
something else needs whole.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from tandem.compiler.passes.graph import aten, call, calls, is_call, is_constant, item, positional, sweep, value

GATHER = aten.index_select.default
TANDEM = torch.ops.tandem
ONE_INPUT = (
    aten.tanh.default,
    aten.mul.Tensor,
    aten.div.Tensor,
    aten.to.dtype,
    aten._to_copy.default,
    TANDEM.round_activations.default,
    TANDEM.rms_norm.default,
    TANDEM.quantized_linear.default,
    aten.linear.default,
)
"""Operators on rows, whose rows are those of their first argument; all others are constants or numbers."""


def run(module: GraphModule) -> int:
    """How many gathers moved, however far."""
    count = sum(_climb(module, gather) for gather in calls(module.graph, GATHER))
    sweep(module)
    return count


def _climb(module: GraphModule, gather: Node) -> bool:
    moved = False
    if any(is_call(user, TANDEM.add_rms_norm.default) for user in gather.users):
        return moved  # It has climbed as far as it goes: the stack of layers stays whole.
    while _works_by_row(gather.args[0]) and gather.args[1] == 0:
        gather = _above(module, gather)
        moved = True
    if _is_last_norm(gather.args[0]) and gather.args[1] == 0:
        _above_residual_sum(module, gather)
        moved = True
    return moved


def _works_by_row(source: Any) -> bool:
    """An operator of `ONE_INPUT`, for the gather alone, whose rows are its first argument's."""
    if not is_call(source, *ONE_INPUT) or len(source.users) != 1:
        return False
    x, *others = source.args
    is_alone = all(is_constant(other) for other in others if isinstance(other, Node))
    return isinstance(x, Node) and not is_constant(x) and value(x).dim() > 1 and is_alone


def _is_last_norm(source: Any) -> bool:
    """The norm of a residual sum, where nobody needs the sum itself."""
    if not is_call(source, operator.getitem) or source.args[1] != 0 or len(source.users) != 1:
        return False
    return is_call(source.args[0], TANDEM.add_rms_norm.default) and len(source.args[0].users) == 1


def _above(module: GraphModule, gather: Node) -> Node:
    """Swap the gather with the operator that feeds it; returns the new gather."""
    source, _, rows = positional(gather)
    x, *others = positional(source)
    with module.graph.inserting_before(gather):
        above = call(module.graph, GATHER, (x, 0, rows), gather)
        fewer = module.graph.call_function(source.target, (above, *others), source.kwargs)
    fewer.meta = dict(source.meta) | {"val": gather.meta["val"]}
    _replace(module, gather, fewer)
    return above


def _above_residual_sum(module: GraphModule, gather: Node) -> None:
    source, _, rows = positional(gather)
    norm = source.args[0]
    x, delta, *others = positional(norm)
    with module.graph.inserting_before(gather):
        few = [call(module.graph, GATHER, (whole, 0, rows), gather) for whole in (x, delta)]
        fused = call(module.graph, TANDEM.add_rms_norm.default, (*few, *others), norm)
        normed = item(module.graph, fused, 0)
    _replace(module, gather, normed)


def _replace(module: GraphModule, gather: Node, fewer: Node) -> None:
    gather.replace_all_uses_with(fewer)
    module.graph.eliminate_dead_code()
