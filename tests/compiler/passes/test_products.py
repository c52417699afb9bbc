"""Dequantised weights into products; q, k, v and gate, up into one; and int8 results for integer products."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import embedding, gelu, linear, silu

from tandem.compiler.passes import dequantize, gate, qkv, quantize
from tests.compiler.passes.networks import Precision, rounded
from tests.compiler.passes.small import constants, kernels, random, rewrite, traced

X = random(5, 32)
OPS = torch.ops.tandem


def quantized(rows: int, *, seed: int = 0, group: int = 0, symmetric: bool = True) -> dict[str, Tensor]:
    matrix = rounded(random(rows, 32, seed=seed), Precision("int8", group, "float", symmetric))
    found = {"codes": matrix.codes, "scale": matrix.scale}
    return found if matrix.offset is None else found | {"offset": matrix.offset}


def named(**matrices: dict[str, Tensor]) -> dict[str, Tensor]:
    """Buffers can't have dots in this small module: w_codes, w_scale, …"""
    return {f"{name}_{part}": tensor for name, parts in matrices.items() for part, tensor in parts.items()}


def test_dequantised_weights_go_into_the_product() -> None:
    def block(m: Any, x: Tensor) -> Any:
        weight = OPS.dequantize(m.w_codes, m.w_scale, None, "int8", torch.float32)
        return linear(OPS.round_activations(x, "int8_token"), weight, m.bias)

    graph = traced(block, X, bias=random(8), **named(w=quantized(8)))
    rewrite(dequantize.run, graph, X, expected=1)
    assert kernels(graph) == ["tandem.quantized_linear"]
    (node,) = [n for n in graph.graph.nodes if n.op == "call_function"]
    assert node.args[5] == "int8_token"


def test_one_matrix_for_the_embedding_and_the_head() -> None:
    def block(m: Any, tokens: Tensor) -> Tensor:
        weight = OPS.dequantize(m.w_codes, m.w_scale, m.w_offset, "int8", torch.float32)
        return linear(embedding(tokens, weight), weight)

    tokens = torch.tensor([3, 0, 3])
    graph = traced(block, tokens, **named(w=quantized(8, symmetric=False)))
    rewrite(dequantize.run, graph, tokens, expected=2)
    assert kernels(graph) == ["tandem.quantized_embedding", "tandem.quantized_linear"]
    assert constants(graph) == {"w_codes", "w_scale", "w_offset"}


def test_a_matrix_that_something_else_reads_is_still_made() -> None:
    def block(m: Any, x: Tensor) -> Any:
        weight = OPS.dequantize(m.w_codes, m.w_scale, None, "int8", torch.float32)
        return linear(x, weight) + weight.sum()

    graph = traced(block, X, **named(w=quantized(8)))
    rewrite(dequantize.run, graph, X, expected=1)
    assert "tandem.dequantize" in kernels(graph)


def projections(m: Any, x: Tensor) -> tuple[Tensor, ...]:
    return tuple(linear(x, getattr(m, n), getattr(m, f"{n}_bias", None)) for n in "qkv")


WEIGHTS = {"q": random(16, 32), "k": random(8, 32), "v": random(8, 32, seed=1)}
BIASES = {"q_bias": random(16), "k_bias": random(8), "v_bias": random(8, seed=1)}


@pytest.mark.parametrize("biases", [{}, BIASES])
def test_three_projections_become_one(biases: dict[str, Tensor]) -> None:
    graph = traced(projections, X, **WEIGHTS, **biases)
    rewrite(qkv.run, graph, X, expected=1)
    assert kernels(graph) == ["aten.linear"]
    assert constants(graph) == {"qkv"} | ({"qkv_bias"} if biases else set())
    assert torch.equal(graph.get_buffer("qkv"), torch.cat(list(WEIGHTS.values())))


def quantized_projections(m: Any, x: Tensor, **changes: Any) -> tuple[Tensor, ...]:
    def one(name: str) -> Tensor:
        offset, activations = getattr(m, f"{name}_offset", None), changes.get(name, "int8_group")
        weight = (getattr(m, f"{name}_codes"), getattr(m, f"{name}_scale"), offset)
        y: Tensor = OPS.quantized_linear(x, *weight, "int8", activations, None)
        return y

    return one("q"), one("k"), one("v")


@pytest.mark.parametrize("symmetric", [False, True])
def test_quantised_projections_become_one(symmetric: bool) -> None:
    matrices = {n: quantized(8, seed=i, group=16, symmetric=symmetric) for i, n in enumerate("qkv")}
    graph = traced(quantized_projections, X, **named(**matrices))
    rewrite(qkv.run, graph, X, expected=1)
    assert kernels(graph) == ["tandem.quantized_linear"]
    joined = next(n for n in graph.graph.nodes if n.op == "call_function")
    assert joined.args[1].meta["val"].shape == (24, 32)


def test_projections_that_differ_in_kind_stay() -> None:
    same = {n: quantized(8, seed=i, group=16) for i, n in enumerate("qkv")}
    other_group, other_offset = quantized(8, group=32), quantized(8, group=16, symmetric=False)
    for matrices in (same | {"k": other_group}, same | {"v": other_offset}):
        rewrite(qkv.run, traced(quantized_projections, X, **named(**matrices)), X, expected=0)
    mixed = traced(lambda m, x: quantized_projections(m, x, k="float"), X, **named(**same))
    rewrite(qkv.run, mixed, X, expected=0)


NOT_QKV: dict[str, Any] = {
    "two products": lambda m, x: (linear(x, m.q), linear(x, m.k)),
    "four products": lambda m, x: (linear(x, m.q), linear(x, m.k), linear(x, m.v), linear(x, m.k + 1)),
    "different inputs": lambda m, x: (linear(x, m.q), linear(x + 1, m.k), linear(x, m.v)),
    "a bias at one": lambda m, x: (linear(x, m.q, m.q_bias), linear(x, m.k), linear(x, m.v)),
    "one weight twice": lambda m, x: (linear(x, m.q), linear(x, m.k), linear(x, m.k)),
    "a weight read elsewhere": lambda m, x: (linear(x, m.q), linear(x, m.k), linear(x, m.v), m.v.sum()),
}


@pytest.mark.parametrize("name", sorted(NOT_QKV))
def test_other_products_stay(name: str) -> None:
    before = traced(NOT_QKV[name], X, **WEIGHTS, **BIASES)
    if name == "four products":
        before = traced(lambda m, x: (*projections(m, x), linear(x, m.w)), X, **WEIGHTS, w=random(4, 32))
    rewrite(qkv.run, before, X, expected=0)


HALVES = {"g": random(16, 32), "u": random(16, 32, seed=1)}


@pytest.mark.parametrize("is_silu", [True, False])
@pytest.mark.parametrize("swapped", [True, False])
def test_a_gated_product_becomes_two_operators(is_silu: bool, swapped: bool) -> None:
    def block(m: Any, x: Tensor) -> Tensor:
        up, both = linear(x, m.u), linear(x, m.g)
        active = silu(both) if is_silu else gelu(both, approximate="tanh")
        return up * active if swapped else active * up

    graph = traced(block, X, **HALVES)
    rewrite(gate.run, graph, X, expected=1)
    assert kernels(graph) == ["aten.linear", "tandem.gate"]
    assert torch.equal(graph.get_buffer("gate_up"), torch.cat([HALVES["g"], HALVES["u"]]))


NOT_GATES: dict[str, Any] = {
    "gelu by the error function": lambda m, x: gelu(linear(x, m.g)) * linear(x, m.u),
    "different inputs": lambda m, x: silu(linear(x, m.g)) * linear(x + 1, m.u),
    "an activation used again": lambda m, x: (a := silu(linear(x, m.g))) * linear(x, m.u) + a,
    "one half used again": lambda m, x: silu(linear(x, m.g)) * (u := linear(x, m.u)) + u,
    "a weight that is computed": lambda m, x: silu(linear(x, m.g)) * linear(x, m.u[:1].clone()),
    "a square": lambda m, x: silu(y := linear(x, m.g)) * y,
}


@pytest.mark.parametrize("name", sorted(NOT_GATES))
def test_what_is_no_gate_stays(name: str) -> None:
    rewrite(gate.run, traced(NOT_GATES[name], X, **HALVES), X, expected=0)


def product(m: Any, x: Tensor, name: str = "w", activations: str = "int8_token") -> Tensor:
    y: Tensor = OPS.quantized_linear(
        x, getattr(m, f"{name}_codes"), getattr(m, f"{name}_scale"), None, "int8", activations, None
    )
    return y


BY_TOKEN: dict[str, tuple[Any, list[str]]] = {
    "norm": (
        lambda m, x, d: product(m, OPS.rms_norm(x, m.n, 1e-5)),
        ["tandem.rms_norm_quantized", "tandem.int8_linear"],
    ),
    "sum and norm": (
        lambda m, x, d: (lambda r: product(m, r[0]) + r[1].sum())(OPS.add_rms_norm(x, d, m.n, 1e-5, None)),
        ["tandem.add_rms_norm_quantized", "tandem.int8_linear", "aten.sum", "aten.add"],
    ),
    "gate": (
        lambda m, x, d: product(m, OPS.gate(torch.cat([x, d], 1), "silu")),
        ["aten.cat", "tandem.gate_quantized", "tandem.int8_linear"],
    ),
    "two products": (
        lambda m, x, d: product(m, y := OPS.rms_norm(x, m.n, 1e-5)) + product(m, y, "v"),
        ["tandem.rms_norm_quantized", "tandem.int8_linear", "tandem.int8_linear", "aten.add"],
    ),
}
TWO = named(w=quantized(8), v=quantized(8, seed=1))
DELTA = random(5, 32, seed=7)


@pytest.mark.parametrize("name", sorted(BY_TOKEN))
def test_results_are_rounded_where_they_are_made(name: str) -> None:
    function, wanted = BY_TOKEN[name]
    graph = traced(function, X, DELTA, n=random(32), **TWO)
    rewrite(quantize.run, graph, X, DELTA, expected=1, atol=1e-4)
    assert kernels(graph) == wanted


NOT_BY_TOKEN: dict[str, Any] = {
    "floats wanted too": lambda m, x, d: product(m, y := OPS.rms_norm(x, m.n, 1e-5)).sum() + y,
    "by group": lambda m, x, d: product(m, OPS.rms_norm(x, m.n, 1e-5), activations="int8_group"),
    "one product by group": lambda m, x, d: (
        product(m, y := OPS.rms_norm(x, m.n, 1e-5)) + product(m, y, "v", "int8_group")
    ),
    "an input of another kind": lambda m, x, d: product(m, x),
}


@pytest.mark.parametrize("name", sorted(NOT_BY_TOKEN))
def test_other_results_stay_in_floats(name: str) -> None:
    graph = traced(NOT_BY_TOKEN[name], X, DELTA, n=random(32), **TWO)
    rewrite(quantize.run, graph, X, DELTA, expected=0)
