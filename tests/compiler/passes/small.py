"""Small graphs to rewrite: a module traced as the compiler traces networks, and what must stay equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

import tandem.engine.kernels.ops  # noqa: F401  (registers the operators)
from tandem.compiler.export import graph_of
from tandem.compiler.passes.pipeline import kernel_name


class Small(nn.Module):
    """A function of inputs over named weights, which it finds as attributes of its first argument."""

    def __init__(self, function: Callable[..., Any], **weights: Tensor) -> None:
        super().__init__()
        self._function = function
        for name, weight in weights.items():
            self.register_buffer(name, weight)

    def forward(self, *inputs: Tensor) -> Any:
        return self._function(self, *inputs)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def traced(function: Callable[..., Any], *inputs: Tensor, **weights: Tensor) -> GraphModule:
    return graph_of(torch.export.export(Small(function, **weights), inputs, strict=False))


def kernels(graph: GraphModule) -> list[str]:
    names = [kernel_name(node) for node in graph.graph.nodes if node.op == "call_function"]
    return [name for name in names if name is not None]


def constants(graph: GraphModule) -> set[str]:
    return {name for name, _ in graph.named_buffers()}


def rewrite(
    run: Callable[[GraphModule], int], graph: GraphModule, *inputs: Tensor, expected: int, atol: float = 1e-5
) -> None:
    """Run a pass: it must find `expected` places, and the graph must give what it gave, to its inputs too."""
    before_inputs, after_inputs = [x.clone() for x in inputs], [x.clone() for x in inputs]
    before = graph(*before_inputs)
    assert run(graph) == expected
    torch.testing.assert_close(graph(*after_inputs), before, atol=atol, rtol=1e-5)
    torch.testing.assert_close(after_inputs, before_inputs, atol=atol, rtol=1e-5)
