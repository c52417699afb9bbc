"""Products of one input with several weights, joined into one: rows of the weights below one another.

Shared by the passes that join q, k, v and gate, up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from tandem.compiler.passes.graph import add_constant, arguments, aten, call, constant, is_call, is_constant, value

LINEAR = aten.linear.default
QUANTIZED = torch.ops.tandem.quantized_linear.default


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product with constant weights."""

    node: Node
    x: Node
    parts: dict[str, Node]
    """The weight: "" for one in floats; ".codes", ".scale" and perhaps ".offset" for a quantised one."""
    bias: Node | None
    sort: tuple[Any, ...]
    """What products must share to be joined: type, or kind of quantisation, its group and activations."""

    @property
    def rows(self) -> int:
        return value(next(iter(self.parts.values()))).shape[0]


def product(node: Any) -> Product | None:
    """The node as a product; None if it is something else, or its weights aren't constants."""
    if not is_call(node, LINEAR, QUANTIZED):
        return None
    given = arguments(node)
    x, bias = given["input" if node.target is LINEAR else "x"], given["bias"]
    if node.target is LINEAR:
        parts = {"": given["weight"]}
    else:
        parts = {f".{name}": given[name] for name in ("codes", "scale", "offset") if given[name] is not None}
    if not all(is_constant(part) for part in [*parts.values(), *([] if bias is None else [bias])]):
        return None
    return Product(node, x, parts, bias, _sort(node, given, parts))


def _sort(node: Node, given: dict[str, Any], parts: dict[str, Node]) -> tuple[Any, ...]:
    if node.target is LINEAR:
        return ("float", value(parts[""]).dtype)
    codes, scale = value(parts[".codes"]), value(parts[".scale"])
    return (given["kind"], given["activations"], codes.shape[1] // scale.shape[1], ".offset" in parts)


def joinable(products: Sequence[Product]) -> bool:
    """One input, weights of one sort that nobody else reads, and biases at all of them or at none."""
    first = products[0]
    weights = [part for product in products for part in product.parts.values()]
    return (
        all(p.x is first.x and p.sort == first.sort and (p.bias is None) == (first.bias is None) for p in products)
        and all(len(weight.users) == 1 for weight in weights)
        and len({p.node for p in products}) == len(products)
    )


def join(module: GraphModule, products: Sequence[Product], name: str) -> Node:
    """One product for all, [T, sum of rows], at the first one's place; its weight is called `name` beside theirs."""
    first = products[0]
    at = beside(next(iter(first.parts.items())), name)
    with module.graph.inserting_before(min((p.node for p in products), key=_order(module))):
        parts = [_stacked(module, [p.parts[part] for p in products], f"{at}{part}") for part in first.parts]
        bias = None
        if first.bias is not None:
            bias = _stacked(module, [p.bias for p in products if p.bias is not None], f"{at}_bias")
        if first.node.target is LINEAR:
            return call(module.graph, LINEAR, (first.x, parts[0], bias), first.node)
        codes, scale, *offset = parts
        given = arguments(first.node)
        args = (first.x, codes, scale, offset[0] if offset else None, given["kind"], given["activations"], bias)
        return call(module.graph, QUANTIZED, args, first.node)


def beside(part: tuple[str, Node], name: str) -> str:
    """The dotted name of a constant that replaces this one: layers.0.q.codes → layers.0.qkv."""
    suffix, node = part
    old = str(node.target).removesuffix(suffix)
    parent = old.rpartition(".")[0]
    return f"{parent}.{name}" if parent else name


def _stacked(module: GraphModule, nodes: Sequence[Node], name: str) -> Node:
    tensors: list[Tensor] = [constant(module, node) for node in nodes]
    return add_constant(module, name, torch.cat(tensors), nodes[0])


def _order(module: GraphModule) -> Any:
    index = {node: i for i, node in enumerate(module.graph.nodes)}
    return index.__getitem__
