"""RMSNorm into one operator, and the residual sum into it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tandem.compiler.network import rms_norm as spelled
from tandem.compiler.passes import add_rms_norm, rms_norm
from tests.compiler.passes.small import constants, kernels, random, rewrite, traced

X, DELTA = random(5, 16), random(5, 16, seed=1)
W, V = random(16, seed=2), random(16, seed=3)
EPS = 1e-5
fused = torch.ops.tandem.rms_norm


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_norm_becomes_one_operator(dtype: torch.dtype) -> None:
    graph = traced(lambda m, x: spelled(x, m.w, EPS), X.to(dtype), w=W)
    rewrite(rms_norm.run, graph, X.to(dtype), expected=1)
    assert kernels(graph) == ["tandem.rms_norm"]
    assert constants(graph) == {"w"}


def test_norms_of_heads_and_norms_of_norms() -> None:
    heads = random(5, 4, 16)
    graph = traced(lambda m, x: spelled(spelled(x, m.w, EPS), m.v, EPS), heads, w=W, v=V)
    rewrite(rms_norm.run, graph, heads, expected=2)
    assert kernels(graph) == ["tandem.rms_norm"] * 2


NOT_NORMS: dict[str, Any] = {
    "another dimension": lambda m, x: x * torch.rsqrt(x.square().mean(0, keepdim=True) + EPS) * m.w,
    "a weight that is computed": lambda m, x: spelled(x, m.w * x[0], EPS),
    "the mean of something else": lambda m, x: x * torch.rsqrt((x + 1).square().mean(-1, keepdim=True) + EPS) * m.w,
    "one weight for all": lambda m, x: spelled(x, m.w[:1], EPS),
    "a weight a row": lambda m, x: spelled(x, m.rows, EPS),
    "no square root": lambda m, x: x * (x.square().mean(-1, keepdim=True) + EPS) * m.w,
}


@pytest.mark.parametrize("name", sorted(NOT_NORMS))
def test_what_is_no_rms_norm_stays(name: str) -> None:
    graph = traced(NOT_NORMS[name], X, w=W, rows=random(5, 1))
    rewrite(rms_norm.run, graph, X, expected=0)


def test_the_sum_goes_into_the_norm_and_stays_to_be_had() -> None:
    def block(m: Any, x: Tensor, delta: Tensor) -> Any:
        total = x + delta
        return total + fused(total, m.w, EPS)

    graph = traced(block, X, DELTA, w=W)
    rewrite(add_rms_norm.run, graph, X, DELTA, expected=1)
    assert kernels(graph) == ["tandem.add_rms_norm", "aten.add"]


def test_the_norm_of_what_is_added_goes_along() -> None:
    graph = traced(lambda m, x, d: fused(x + fused(d, m.v, EPS), m.w, EPS), X, DELTA, w=W, v=V)
    rewrite(add_rms_norm.run, graph, X, DELTA, expected=1)
    assert kernels(graph) == ["tandem.add_rms_norm"]


def test_an_inner_norm_that_is_used_elsewhere_or_differs_stays() -> None:
    def used_twice(m: Any, x: Tensor, delta: Tensor) -> Any:
        normed = fused(delta, m.v, EPS)
        return fused(x + normed, m.w, EPS) + normed

    for function in (used_twice, lambda m, x, d: fused(x + fused(d, m.v, 1e-2), m.w, EPS)):
        graph = traced(function, X, DELTA, w=W, v=V)
        rewrite(add_rms_norm.run, graph, X, DELTA, expected=1)
        assert kernels(graph)[:2] == ["tandem.rms_norm", "tandem.add_rms_norm"]


def test_two_norms_of_one_sum_fuse_once() -> None:
    def block(m: Any, x: Tensor, delta: Tensor) -> Any:
        total = x + delta
        return fused(total, m.w, EPS) * fused(total, m.v, EPS)

    graph = traced(block, X, DELTA, w=W, v=V)
    rewrite(add_rms_norm.run, graph, X, DELTA, expected=1)
    assert sorted(kernels(graph)) == ["aten.mul", "tandem.add_rms_norm", "tandem.rms_norm"]


NOT_SUMS: dict[str, Any] = {
    "a number": lambda m, x, d: fused(x + 1.0, m.w, EPS) + d,
    "a row for all": lambda m, x, d: fused(x + d[:1], m.w, EPS),
    "a multiple": lambda m, x, d: fused(torch.add(x, d, alpha=2), m.w, EPS),
    "a difference": lambda m, x, d: fused(x - d, m.w, EPS),
    "heads": lambda m, x, d: fused(x.view(5, 2, 8) + d.view(5, 2, 8), m.short, EPS),
}


@pytest.mark.parametrize("name", sorted(NOT_SUMS))
def test_other_sums_stay(name: str) -> None:
    graph = traced(NOT_SUMS[name], X, DELTA, w=W, short=W[:8].clone())
    rewrite(add_rms_norm.run, graph, X, DELTA, expected=0)
