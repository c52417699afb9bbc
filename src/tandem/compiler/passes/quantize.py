"""Norms and gates whose results go to integer products only, rounded to int8 where they are made.

    before  normed, sum = tandem.add_rms_norm(x, delta, weight, eps)
            y = tandem.quantized_linear(normed, codes, scale, offset, kind, "int8_token", bias)
    after   q, s, sum = tandem.add_rms_norm_quantized(x, delta, weight, eps)
            y = tandem.int8_linear(q, s, codes, scale, offset, kind, bias, dtype)

The same for tandem.rms_norm and tandem.gate.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from tandem.compiler.passes.graph import arguments, call, calls, is_call, item, sweep, value

TANDEM = torch.ops.tandem
PRODUCT = TANDEM.quantized_linear.default
QUANTIZED: dict[Any, Any] = {
    TANDEM.rms_norm.default: TANDEM.rms_norm_quantized.default,
    TANDEM.add_rms_norm.default: TANDEM.add_rms_norm_quantized.default,
    TANDEM.gate.default: TANDEM.gate_quantized.default,
}


def run(module: GraphModule) -> int:
    graph, count = module.graph, 0
    for node in calls(graph, *QUANTIZED):
        result = _result(node)
        if result is None or not result.users or not all(_is_by_token(user, result) for user in result.users):
            continue
        with graph.inserting_before(node):
            fused = call(graph, QUANTIZED[node.target], node.args, node)
            codes, scale = item(graph, fused, 0), item(graph, fused, 1)
            for other in [user for user in node.users if user is not result and is_call(user, operator.getitem)]:
                other.replace_all_uses_with(item(graph, fused, 2))
        for user in list(result.users):
            _consume(module, user, codes, scale)
        count += 1
        graph.eliminate_dead_code()
    sweep(module)
    return count


def _result(node: Node) -> Node | None:
    """What goes to products: the call itself, or the first of its two results."""
    if node.target is not TANDEM.add_rms_norm.default:
        return node
    return next((user for user in node.users if is_call(user, operator.getitem) and user.args[1] == 0), None)


def _is_by_token(user: Node, x: Node) -> bool:
    if not is_call(user, PRODUCT):
        return False
    given = arguments(user)
    return given["x"] is x and given["activations"] == "int8_token"


def _consume(module: GraphModule, product: Node, codes: Node, scale: Node) -> None:
    given: dict[str, Any] = arguments(product)
    weight = (given["codes"], given["scale"], given["offset"], given["kind"])
    args = (codes, scale, *weight, given["bias"], value(product).dtype)
    with module.graph.inserting_before(product):
        product.replace_all_uses_with(call(module.graph, TANDEM.int8_linear.default, args, product))
