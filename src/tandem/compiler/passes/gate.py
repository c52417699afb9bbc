"""The two halves of a gated MLP in one product, and the gate itself in one pass over it.

    before  h = silu(linear(x, wg)) · linear(x, wu)
    after   h = tandem.gate(linear(x, wgu), "silu")      wgu: gate rows, then up rows, "layers.0.gate_up"

The same with GELU in its tanh form: "gelu_tanh".
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from tandem.compiler.passes.graph import aten, call, calls, sweep
from tandem.compiler.passes.patterns import Bind, Call, match
from tandem.compiler.passes.products import Product, join, joinable, product

ACTIVATIONS = {
    "silu": Call(aten.silu.default, (Bind("gate"),)),
    "gelu_tanh": Call(aten.gelu.default, (Bind("gate"),), (("approximate", "tanh"),)),
}


def run(module: GraphModule) -> int:
    count = 0
    for node in calls(module.graph, aten.mul.Tensor):
        found = _gated(node)
        if found is None:
            continue
        activation, products = found
        joined = join(module, products, "gate_up")
        with module.graph.inserting_before(node):
            fused = call(module.graph, torch.ops.tandem.gate.default, (joined, activation), node)
        node.replace_all_uses_with(fused)
        count += 1
    sweep(module)
    return count


def _gated(node: Node) -> tuple[str, list[Product]] | None:
    """Activation, and the products of gate and up, where both are used here only and have as many rows."""
    for activation, pattern in ACTIVATIONS.items():
        found = match(Call(aten.mul.Tensor, (pattern, Bind("up"))), node)
        if found is None:
            continue
        gate, up = product(found["gate"]), product(found["up"])
        if gate is None or up is None or not joinable([gate, up]) or gate.rows != up.rows:
            continue
        if len(gate.node.users) == 1 and len(up.node.users) == 1 and all(len(a.users) == 1 for a in gate.node.users):
            return activation, [gate, up]
    return None
