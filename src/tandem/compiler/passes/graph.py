"""What every pass needs of a torch.fx graph: its constants by name, calls of operators, and a clean end.

A graph here is what `compiler/export.py:graph_of` gives. Constants (weights) are `get_attr` nodes; their names are
dotted paths, and passes that join some name the result beside them.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, GraphModule, Node

aten = torch.ops.aten


def calls(graph: Graph, *targets: Any) -> list[Node]:
    """Nodes that call one of these operators, in order."""
    return [node for node in graph.nodes if is_call(node, *targets)]


def is_call(node: Any, *targets: Any) -> TypeGuard[Node]:
    return isinstance(node, Node) and node.op == "call_function" and node.target in targets


def positional(node: Node) -> tuple[Any, ...]:
    """A call's arguments as they were given, typed for looking into."""
    return node.args


def arguments(node: Node) -> dict[str, Any]:
    """A call's arguments by name, defaults included."""
    if not isinstance(node.target, OpOverload):
        return dict(node.kwargs)
    parameters = node.target._schema.arguments
    given = dict(zip((p.name for p in parameters), node.args, strict=False))
    return {p.name: p.default_value for p in parameters} | given | node.kwargs


def value(node: Node) -> Tensor:
    """What the node gives when traced: its shape and type."""
    traced = node.meta["val"]
    assert isinstance(traced, Tensor)
    return traced


def is_constant(node: Any) -> TypeGuard[Node]:
    return isinstance(node, Node) and node.op == "get_attr"


def constant(module: GraphModule, node: Node) -> Tensor:
    owner, name = _owner(module, str(node.target))
    found = getattr(owner, name)
    assert isinstance(found, Tensor)
    return found


def add_constant(module: GraphModule, name: str, tensor: Tensor, like: Node) -> Node:
    """A new constant under a dotted name, as a node where the graph's insertion point is. `like`: an old one's node."""
    owner, leaf = _owner(module, name, create=True)
    assert not hasattr(owner, leaf), f"there is a constant {name} already"
    owner.register_buffer(leaf, tensor)
    node = module.graph.get_attr(name)
    mode = getattr(like.meta.get("val"), "fake_mode", None)
    node.meta["val"] = tensor if mode is None else mode.from_tensor(tensor, static_shapes=True)
    return node


def _owner(module: nn.Module, name: str, *, create: bool = False) -> tuple[nn.Module, str]:
    """The submodule that a dotted name lies in, and its last part."""
    *path, leaf = name.split(".")
    for part in path:
        if create and not hasattr(module, part):
            module.add_module(part, nn.Module())
        module = getattr(module, part)
    return module, leaf


def call(graph: Graph, target: Any, args: Sequence[Any], like: Node) -> Node:
    """A new call at the graph's insertion point; it belongs to the layer of the node `like`, which it stands for."""
    node = graph.call_function(target, tuple(args))
    node.meta = {key: like.meta[key] for key in ("nn_module_stack", "stack_trace") if key in like.meta}
    traced = [a.meta.get("val") if isinstance(a, Node) else a for a in args]
    mode = next((t.fake_mode for t in traced if isinstance(t, FakeTensor)), None)
    if mode is not None:
        with mode:
            node.meta["val"] = target(*traced)
    return node


def item(graph: Graph, source: Node, index: int) -> Node:
    """One of several results of a call."""
    node = graph.call_function(operator.getitem, (source, index))
    node.meta = {key: source.meta[key] for key in ("nn_module_stack",) if key in source.meta}
    if "val" in source.meta:
        node.meta["val"] = source.meta["val"][index]
    return node


def sweep(module: GraphModule) -> None:
    """Drop nodes that nothing needs and constants that no node reads; check the graph and make its code anew."""
    module.graph.eliminate_dead_code()
    used = {str(node.target) for node in module.graph.nodes if node.op == "get_attr"}
    for name, _ in [*module.named_buffers(remove_duplicate=False), *module.named_parameters(remove_duplicate=False)]:
        if name not in used:
            owner, leaf = _owner(module, name)
            delattr(owner, leaf)
    module.graph.lint()
    module.recompile()
