"""Dequantised weights into the product that uses them, and into the embedding: no full matrix is ever made.

before  w = tandem.dequantize(codes, scale, offset); y = linear(tandem.round_activations(x, "int8_token"), w, bias)
after   y = tandem.quantized_linear(x, codes, scale, offset, kind, "int8_token", bias)

before  w = tandem.dequantize(codes, scale, offset); rows = embedding(w, token_ids)
after   rows = tandem.quantized_embedding(token_ids, codes, scale, offset, kind, dtype)
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from tandem.compiler.passes.graph import arguments, aten, call, calls, is_call, positional, sweep

DEQUANTIZE = torch.ops.tandem.dequantize.default
ROUND = torch.ops.tandem.round_activations.default


def run(module: GraphModule) -> int:
    graph, count = module.graph, 0
    for node in calls(graph, aten.linear.default, aten.embedding.default):
        is_product = is_call(node, aten.linear.default)
        weight = node.args[1] if is_product else node.args[0]
        if not is_call(weight, DEQUANTIZE):
            continue
        with graph.inserting_before(node):
            fused = _product(module, node, weight) if is_product else _embedding(module, node, weight)
        node.replace_all_uses_with(fused)
        count += 1
    sweep(module)
    return count


def _product(module: GraphModule, node: Node, weight: Node) -> Node:
    codes, scale, offset, kind, _ = weight.args
    given, activations = arguments(node), "float"
    x, bias = given["input"], given["bias"]
    if is_call(x, ROUND):
        x, activations = positional(x)
    args = (x, codes, scale, offset, kind, activations, bias)
    return call(module.graph, torch.ops.tandem.quantized_linear.default, args, node)


def _embedding(module: GraphModule, node: Node, weight: Node) -> Node:
    codes, scale, offset, kind, dtype = weight.args
    args = (node.args[1], codes, scale, offset, kind, dtype)
    return call(module.graph, torch.ops.tandem.quantized_embedding.default, args, node)
