"""Queries, keys and values in one product.

before  q = linear(x, wq); k = linear(x, wk); v = linear(x, wv)
after   q, k, v = split(linear(x, wqkv))             wqkv: the rows of all three, "layers.0.qkv"
"""

from __future__ import annotations

from torch.fx import GraphModule, Node

from tandem.compiler.passes.graph import aten, call, item, sweep
from tandem.compiler.passes.products import Product, join, joinable, product


def run(module: GraphModule) -> int:
    count = 0
    for products in _triples(module):
        if not joinable(products):
            continue
        joined = join(module, products, "qkv")
        with module.graph.inserting_after(joined):
            sizes = [p.rows for p in products]
            split = call(module.graph, aten.split_with_sizes.default, (joined, sizes, -1), joined)
        for index, old in enumerate(products):
            with module.graph.inserting_before(old.node):
                old.node.replace_all_uses_with(item(module.graph, split, index))
        count += 1
    sweep(module)
    return count


def _triples(module: GraphModule) -> list[list[Product]]:
    """Products that share an input with just two others, in the order of the graph."""
    by_input: dict[Node, list[Product]] = {}
    for node in module.graph.nodes:
        found = product(node)
        if found is not None:
            by_input.setdefault(found.x, []).append(found)
    return [products for products in by_input.values() if len(products) == 3]
