"""The gather of wanted rows on its way up, and constants computed beforehand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

from tandem.compiler.passes import fold_constants, last_rows
from tests.compiler.passes.small import constants, kernels, random, rewrite, traced

X, DELTA, ROWS = random(6, 16), random(6, 16, seed=1), torch.tensor([5, 0, 5])
WEIGHTS = {"norm": random(16), "head": random(9, 16)}
OPS = torch.ops.tandem


def capped(logits: Tensor) -> Tensor:
    return torch.tanh(logits / 3.0) * 3.0


def test_the_gather_climbs_over_the_head_and_the_final_norm() -> None:
    def block(m: Any, x: Tensor, delta: Tensor, rows: Tensor) -> Tensor:
        normed, _ = OPS.add_rms_norm(x, delta, m.norm, 1e-5, None)
        return capped(linear(normed, m.head)).index_select(0, rows)

    graph = traced(block, X, DELTA, ROWS, **WEIGHTS)
    rewrite(last_rows.run, graph, X, DELTA, ROWS, expected=1)
    wanted = ["aten.index_select", "aten.index_select", "tandem.add_rms_norm", "aten.linear"]
    assert kernels(graph) == [*wanted, "aten.div", "aten.tanh", "aten.mul"]


def test_a_sum_that_is_wanted_whole_holds_the_gather() -> None:
    def block(m: Any, x: Tensor, delta: Tensor, rows: Tensor) -> Any:
        normed, total = OPS.add_rms_norm(x, delta, m.norm, 1e-5, None)
        return linear(normed, m.head).index_select(0, rows), total

    graph = traced(block, X, DELTA, ROWS, **WEIGHTS)
    rewrite(last_rows.run, graph, X, DELTA, ROWS, expected=1)
    assert kernels(graph) == ["tandem.add_rms_norm", "aten.index_select", "aten.linear"]


HELD: dict[str, Any] = {
    "two gathers of different rows": lambda m, x, d, r: (
        (y := linear(x, m.head)).index_select(0, r),
        y.index_select(0, r + 0),
    ),
    "columns": lambda m, x, d, r: linear(x, m.head).index_select(1, r),
    "a sum over rows": lambda m, x, d, r: x.cumsum(0).index_select(0, r),
    "two inputs": lambda m, x, d, r: (x * d).index_select(0, r),
    "an input": lambda m, x, d, r: x.index_select(0, r),
}


@pytest.mark.parametrize("name", sorted(HELD))
def test_where_the_gather_has_to_stay(name: str) -> None:
    rewrite(last_rows.run, traced(HELD[name], X, DELTA, ROWS, **WEIGHTS), X, DELTA, ROWS, expected=0)


def test_tables_are_computed_once() -> None:
    def block(m: Any, positions: Tensor) -> Tensor:
        angles = torch.arange(8, dtype=torch.float32).unsqueeze(1) * m.frequencies
        return torch.cat([angles.cos(), angles.sin()], -1).index_select(0, positions)

    positions = torch.tensor([7, 0])
    graph = traced(block, positions, frequencies=random(4))
    rewrite(fold_constants.run, graph, positions, expected=1)
    assert kernels(graph) == ["aten.index_select"]
    assert constants(graph) == {"frequencies_folded"}


def test_two_results_of_one_weight_have_two_names() -> None:
    graph = traced(lambda m, x: (x * m.w.exp(), x + m.w.sin()), X, w=random(16))
    rewrite(fold_constants.run, graph, X, expected=2)
    assert constants(graph) == {"w_folded", "w_folded_2"}


def test_quantised_weights_are_not_unfolded_and_inputs_are_no_constants() -> None:
    codes, scale = torch.ones((4, 16), dtype=torch.uint8), torch.ones(4, 1)
    graph = traced(
        lambda m, x: linear(x, OPS.dequantize(m.codes, m.scale, None, "int8", torch.float32)),
        X,
        codes=codes,
        scale=scale,
    )
    rewrite(fold_constants.run, graph, X, expected=0)
    rewrite(fold_constants.run, traced(lambda m, x: x.exp() * 2.0, X), X, expected=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_scale_of_embeddings_goes_into_their_table(dtype: torch.dtype) -> None:
    tokens = torch.tensor([3, 1])
    graph = traced(lambda m, t: embedding(t, m.table) * 8.0625, tokens, table=random(9, 16).to(dtype))
    rewrite(fold_constants.run, graph, tokens, expected=1, atol=0.0)
    assert kernels(graph) == ["aten.embedding"]


def test_a_table_that_is_the_head_too_keeps_its_numbers() -> None:
    tokens = torch.tensor([3, 1])
    graph = traced(lambda m, t: linear(embedding(t, m.table) * 8.0, m.table), tokens, table=random(9, 16))
    rewrite(fold_constants.run, graph, tokens, expected=0)
