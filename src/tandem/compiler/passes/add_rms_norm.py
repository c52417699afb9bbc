"""The residual sum and the norm behind it in one pass over a row; with Gemma's norm of what is added, if there is one.

before  sum = x + delta;                normed = tandem.rms_norm(sum, weight, eps)
after   normed, sum = tandem.add_rms_norm(x, delta, weight, eps)

before  sum = x + tandem.rms_norm(delta, inner, eps);  normed = tandem.rms_norm(sum, weight, eps)
after   normed, sum = tandem.add_rms_norm(x, delta, weight, eps, inner)
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from tandem.compiler.passes.graph import arguments, aten, call, calls, is_call, item, positional, sweep, value

RMS_NORM = torch.ops.tandem.rms_norm.default
FUSED = torch.ops.tandem.add_rms_norm.default


def run(module: GraphModule) -> int:
    graph, count = module.graph, 0
    for norm in calls(graph, RMS_NORM):
        total, weight, eps = positional(norm)
        if not _is_residual_sum(total):
            continue
        x, delta = positional(total)
        inner = None
        if is_call(delta, RMS_NORM) and len(delta.users) == 1 and delta.args[2] == eps:
            delta, inner, _ = positional(delta)
        # Beside the norm's own weight nothing is newer than the sum, so the sum's other users still come later.
        with graph.inserting_before(total):
            graph_weight = graph.get_attr(str(weight.target))
            graph_weight.meta = dict(weight.meta)
            fused = call(graph, FUSED, (x, delta, graph_weight, eps, inner), norm)
            normed, new_total = item(graph, fused, 0), item(graph, fused, 1)
        norm.replace_all_uses_with(normed)
        total.replace_all_uses_with(new_total)
        graph.eliminate_dead_code()
        count += 1
    sweep(module)
    return count


def _is_residual_sum(total: Any) -> bool:
    """A plain sum of two tensors of one shape and type that no other norm has taken."""
    if not is_call(total, aten.add.Tensor) or arguments(total)["alpha"] != 1:
        return False
    x, delta = positional(total)
    if not (isinstance(x, Node) and isinstance(delta, Node)) or value(total).dim() != 2:
        return False
    return value(x).shape == value(delta).shape and value(x).dtype == value(delta).dtype
