"""Expressions to look for in a graph, and a matcher.

A pattern is written as the expression it finds. `Bind("x")` stands for any argument, and for the same one wherever it
is named again; numbers stand for themselves. Sums and products match in either order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from tandem.compiler.passes.graph import arguments, aten, is_call

COMMUTE = frozenset({aten.add.Tensor, aten.mul.Tensor})
CASTS = (aten.to.dtype, aten._to_copy.default)
Bound = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Bind:
    """Anything: a node, a number, None."""

    name: str


@dataclass(frozen=True, slots=True)
class Call:
    """A call of `target` whose first arguments match `args`; others may be given by name, and must be equal."""

    target: Any
    args: tuple[Any, ...]
    named: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Cast:
    """`inner`, perhaps converted to another type: a graph in float32 has no such step."""

    inner: Any


def match(pattern: Any, node: Any) -> Bound | None:
    """What the names of the pattern stand for in the expression that ends in `node`; None if it is another one."""
    return _match(pattern, node, {})


def _match(pattern: Any, node: Any, bound: Bound) -> Bound | None:
    if isinstance(pattern, Bind):
        if pattern.name in bound:
            return bound if _same(bound[pattern.name], node) else None
        return bound | {pattern.name: node}
    if isinstance(pattern, Cast):
        found = _match(pattern.inner, node.args[0], bound) if is_call(node, *CASTS) else None
        return found or _match(pattern.inner, node, bound)
    if isinstance(pattern, Call):
        return _match_call(pattern, node, bound)
    if isinstance(pattern, list):
        return _match_all(pattern, node, bound) if isinstance(node, (list, tuple)) else None
    return bound if _same(pattern, node) else None


def _match_all(patterns: Sequence[Any], nodes: Sequence[Any], bound: Bound) -> Bound | None:
    """Each against its own; more nodes than patterns are no obstacle."""
    found: Bound | None = bound
    for pattern, node in zip(patterns, nodes, strict=False):
        found = None if found is None else _match(pattern, node, found)
    return found if len(nodes) >= len(patterns) else None


def _same(left: Any, right: Any) -> bool:
    return left is right if isinstance(left, Node) or isinstance(right, Node) else bool(left == right)


def _match_call(pattern: Call, node: Any, bound: Bound) -> Bound | None:
    if not is_call(node, pattern.target) or len(node.args) < len(pattern.args):
        return None
    given = arguments(node)
    if given.get("alpha", 1) != 1 or any(not _same(expected, given[name]) for name, expected in pattern.named):
        return None
    found = _match_all(pattern.args, node.args, bound)
    if found is None and pattern.target in COMMUTE:
        found = _match_all(pattern.args, node.args[::-1], bound)
    return found
