"""RMSNorm, spelled out, into one operator.

before  wide = x.float(); (wide · rsqrt(mean(wide²) + eps)).to(x) · weight
after   tandem.rms_norm(x, weight, eps)
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

import tandem.engine.kernels.ops  # noqa: F401  (registers the operators)
from tandem.compiler.passes.graph import aten, call, is_constant, sweep, value
from tandem.compiler.passes.patterns import Bind, Bound, Call, Cast, match

WIDE = Cast(Bind("x"))
MEAN = Call(aten.mean.dim, (Call(aten.square.default, (WIDE,)), [-1], True))
SCALED = Call(aten.mul.Tensor, (WIDE, Call(aten.rsqrt.default, (Call(aten.add.Tensor, (MEAN, Bind("eps"))),))))
NORM = Cast(Call(aten.mul.Tensor, (Cast(SCALED), Bind("weight"))))


def run(module: GraphModule) -> int:
    graph, count = module.graph, 0
    for node in reversed(list(graph.nodes)):
        found = match(NORM, node)
        if found is None or not _is_norm(found, node):
            continue
        with graph.inserting_before(node):
            fused = call(graph, torch.ops.tandem.rms_norm.default, (found["x"], found["weight"], found["eps"]), node)
        node.replace_all_uses_with(fused)
        count += 1
        graph.eliminate_dead_code()
    sweep(module)
    return count


def _is_norm(found: Bound, node: Node) -> bool:
    """Over all of the last dimension, by a constant weight of just that size, and back in x's type."""
    x, weight, eps = found["x"], found["weight"], found["eps"]
    if not (isinstance(x, Node) and is_constant(weight) and isinstance(eps, float)):
        return False
    return value(weight).shape == value(x).shape[-1:] and value(node).dtype == value(x).dtype
