"""All passes, in order; and what a graph launches, by layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch.fx import GraphModule, Node

from tandem.compiler.passes import (
    add_rms_norm,
    dequantize,
    fold_constants,
    gate,
    last_rows,
    qkv,
    quantize,
    rms_norm,
    rope_write,
)

Pass = Callable[[GraphModule], int]

PASSES: dict[str, Pass] = {
    "constant folding": fold_constants.run,
    "dequantise into the product": dequantize.run,
    "RMSNorm": rms_norm.run,
    "residual add + RMSNorm": add_rms_norm.run,
    "last-row gather before the LM head": last_rows.run,
    "q, k, v in one product": qkv.run,
    "gate/up + activation": gate.run,
    "RoPE + KV write": rope_write.run,
    "quantise behind norms and gates": quantize.run,
}
"""Name → pass. Each takes graphs that those before it have rewritten, and leaves alone what it doesn't know."""

VIEWS = frozenset({"getitem", "view", "flatten", "unsqueeze", "chunk", "split_with_sizes", "alias"})


class FusionCount(NamedTuple):
    name: str
    count: int  # type: ignore[assignment]  # tuples have a method of that name


def fuse(module: GraphModule) -> list[FusionCount]:
    """Rewrite the graph in place; how often each pass found something."""
    return [FusionCount(name, rewrite(module)) for name, rewrite in PASSES.items()]


def kernels_by_layer(module: GraphModule) -> dict[str, list[str]]:
    """ "embedding", "layers.0", …, "head" → the operators that run there, in order, views left out."""
    found: dict[str, list[str]] = {}
    here = "embedding"
    for node in module.graph.nodes:
        if node.op != "call_function" or (name := kernel_name(node)) is None:
            continue
        own = _layer(node)
        here = own if own is not None else "embedding" if here == "embedding" else "head"
        found.setdefault(here, []).append(name)
    return found


def kernel_name(node: Node) -> str | None:
    """Such as "tandem.attention"; None for what only looks at memory another way."""
    target = node.target
    namespace = getattr(target, "namespace", "")
    name = str(getattr(target, "_opname", getattr(target, "__name__", target)))
    return None if name in VIEWS else f"{namespace}.{name}" if namespace else name


def _layer(node: Node) -> str | None:
    for path, _ in reversed(list(node.meta.get("nn_module_stack", {}).values())):
        parts = path.replace("L['self'].", "").split(".")
        if parts[0] == "layers" and len(parts) > 1:
            return ".".join(parts[:2])
    return None
