"""Everything between the QKV product and attention in one operator: norms of q and k, RoPE, the write of K and V.

    before  q, k, v = split(qkv); q, k = rope(norm(q)), rope(norm(k)); tandem.write_kv(k, v, slots, cache)
            tandem.attention(q, cache, …)
    after   q = tandem.rope_write(qkv, q_norm, k_norm, cos_sin, positions, slots, cache, heads, kv_heads, eps)
            tandem.attention(q, cache, …)

It runs behind the passes that join q, k, v and that make norms one operator.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from tandem.compiler.passes.graph import aten, call, calls, is_call, is_constant, positional, sweep, value
from tandem.compiler.passes.patterns import Bind, Call, Cast, match

RMS_NORM = torch.ops.tandem.rms_norm.default
WRITE_KV = torch.ops.tandem.write_kv.default
ATTENTION = torch.ops.tandem.attention.default
ROPE_WRITE = torch.ops.tandem.rope_write.default

TABLE = Call(aten.unsqueeze.default, (Call(aten.index_select.default, (Bind("cos_sin"), 0, Bind("positions"))), 1))
COS = Call(operator.getitem, (Call(aten.chunk.default, (TABLE, 2, -1)), 0))
SIN = Call(operator.getitem, (Call(aten.chunk.default, (TABLE, 2, -1)), 1))
HALVES = Call(aten.chunk.default, (Cast(Bind("heads")), 2, -1))
FIRST, SECOND = Call(operator.getitem, (HALVES, 0)), Call(operator.getitem, (HALVES, 1))


def _times(left: Any, right: Any) -> Call:
    return Call(aten.mul.Tensor, (left, right))


ROTATED = Cast(
    Call(
        aten.cat.default,
        (
            [
                Call(aten.sub.Tensor, (_times(FIRST, COS), _times(SECOND, SIN))),
                Call(aten.add.Tensor, (_times(SECOND, COS), _times(FIRST, SIN))),
            ],
            -1,
        ),
    )
)
HEADS = Call(aten.view.default, (Call(operator.getitem, (Bind("split"), Bind("part"))), Bind("shape")))
NORMED = Call(RMS_NORM, (HEADS, Bind("norm"), Bind("eps")))


@dataclass(frozen=True, slots=True)
class _Heads:
    """Rotated (or, for values, plain) heads of one part of the split product."""

    split: Node
    part: int
    num_heads: int
    norm: Node | None
    eps: float
    rope: tuple[Node, Node] | None
    """The table and the positions."""


def run(module: GraphModule) -> int:
    graph, count = module.graph, 0
    for write in calls(graph, WRITE_KV):
        attention = _attention_behind(write)
        args = None if attention is None else _fused_args(write, attention)
        if attention is None or args is None:
            continue
        with graph.inserting_before(write):
            fused = call(graph, ROPE_WRITE, args, write)
        attention.replace_input_with(positional(attention)[0], fused)
        graph.erase_node(write)
        graph.eliminate_dead_code()
        count += 1
    sweep(module)
    return count


def _attention_behind(write: Node) -> Node | None:
    """The next operator that uses the cache, if it reads what was written."""
    cache = write.args[3]
    node = write.next
    while node.op != "root" and cache not in node.all_input_nodes:
        node = node.next
    return node if is_call(node, ATTENTION) else None


def _fused_args(write: Node, attention: Node) -> tuple[Any, ...] | None:
    queries, keys, values = _rotated(attention.args[0]), _rotated(write.args[0]), _heads(write.args[1])
    if queries is None or keys is None or values is None:
        return None
    parts = [queries, keys, values]
    sizes_match = keys.num_heads == values.num_heads and values.norm is None
    same = len({p.split for p in parts}) == 1 and [p.part for p in parts] == [0, 1, 2] and queries.rope == keys.rope
    norms_match = (queries.norm is None) == (keys.norm is None) and queries.eps == keys.eps
    if not (sizes_match and same and norms_match) or keys.rope is None:
        return None
    if len(positional(attention)[0].users) != 1 or not is_call(keys.split, aten.split_with_sizes.default):
        return None
    qkv, slots, cache = keys.split.args[0], write.args[2], write.args[3]
    heads = (queries.num_heads, keys.num_heads)
    return (qkv, queries.norm, keys.norm, *keys.rope, slots, cache, *heads, keys.eps)


def _rotated(node: Any) -> _Heads | None:
    found = match(ROTATED, node)
    if found is None or not is_constant(found["cos_sin"]):
        return None
    return _heads(found["heads"], (found["cos_sin"], found["positions"]))


def _heads(node: Any, rope: tuple[Node, Node] | None = None) -> _Heads | None:
    found = match(NORMED, node) or match(HEADS, node)
    if found is None or value(node).dim() != 3:
        return None
    num_heads = int(value(node).shape[1])
    return _Heads(found["split"], found["part"], num_heads, found.get("norm"), found.get("eps", 0.0), rope)
