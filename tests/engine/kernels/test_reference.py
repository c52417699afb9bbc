"""The oracle itself, against formulas written out token by token."""

from __future__ import annotations

import math

import pytest
import torch

from tandem.engine.kernels import reference as ops
from tandem.engine.kernels.step import GroupTensors, StepTensors


def by_hand(
    query: list[float], keys: torch.Tensor, values: torch.Tensor, scale: float, cap: float | None
) -> torch.Tensor:
    """One query over what it may see: softmax(cap · tanh(q·k·scale / cap)) · v."""
    scores = [sum(a * b for a, b in zip(query, key.tolist(), strict=True)) * scale for key in keys]
    if cap is not None:
        scores = [cap * math.tanh(score / cap) for score in scores]
    weights = [math.exp(score - max(scores)) for score in scores]
    mixed = [w / sum(weights) * v for w, v in zip(weights, values, strict=True)]
    return torch.stack(mixed).sum(0)


@pytest.mark.parametrize("window", [None, 1, 3, 100])
@pytest.mark.parametrize("cap", [None, 2.0])
def test_paged_attention_by_hand(window: int | None, cap: float | None) -> None:
    torch.manual_seed(0)
    block_size, kv_heads, heads, dim = 2, 2, 4, 8
    cache = torch.full((2, 12, kv_heads, block_size, dim), float("nan"))
    lengths, news = [5, 7], [2, 7]
    tables = torch.tensor([[3, 7, 1, -1], [0, 9, 4, 11]], dtype=torch.int32)
    keys = [torch.randn(length, kv_heads, dim) for length in lengths]
    values = [torch.randn(length, kv_heads, dim) for length in lengths]
    for table, k, v in zip(tables, keys, values, strict=True):
        positions = torch.arange(len(k))
        slots = table[positions // block_size].long() * block_size + positions % block_size
        ops.write_kv(cache, k, v, slots)
    queries = torch.randn(sum(news), heads, dim)
    step = StepTensors(
        token_ids=torch.zeros(9, dtype=torch.int32),
        positions=torch.zeros(9, dtype=torch.int32),
        query_start=torch.tensor([0, 2, 9], dtype=torch.int32),
        context_len=torch.tensor(lengths, dtype=torch.int32),
        groups=[],
        logit_rows=torch.zeros(0, dtype=torch.int64),
    )
    group = GroupTensors(tables, torch.zeros(9, dtype=torch.int64))
    found = ops.paged_attention(queries, cache, step, group, scale=0.3, window=window, soft_cap=cap)
    for sequence, (length, new) in enumerate(zip(lengths, news, strict=True)):
        for index in range(new):
            at = length - new + index
            first = 0 if window is None else max(0, at - window + 1)
            row = int(step.query_start[sequence]) + index
            for head in range(heads):
                seen = slice(first, at + 1), head // (heads // kv_heads)
                wanted = by_hand(queries[row, head].tolist(), keys[sequence][seen], values[sequence][seen], 0.3, cap)
                torch.testing.assert_close(found[row, head], wanted, atol=1e-5, rtol=1e-5)


def test_padding_slots_are_not_written() -> None:
    cache = torch.zeros(2, 2, 1, 2, 4)
    ops.write_kv(cache, torch.ones(2, 1, 4), torch.ones(2, 1, 4), torch.tensor([-1, 3]))
    assert cache.sum() == 8
    assert cache[:, 1, 0, 1].sum() == 8


def test_rms_norm_and_activations_by_hand() -> None:
    x, weight = torch.tensor([[3.0, 4.0]]), torch.tensor([2.0, 0.5])
    rms = math.sqrt((9 + 16) / 2 + 1e-6)
    torch.testing.assert_close(ops.rms_norm(x, weight, 1e-6), torch.tensor([[6 / rms, 2 / rms]]))
    gate, up = torch.tensor([1.0]), torch.tensor([3.0])
    torch.testing.assert_close(ops.silu_mul(gate, up), torch.tensor([3 / (1 + math.exp(-1))]))
    gelu = 0.5 * (1 + math.tanh(math.sqrt(2 / math.pi) * (1 + 0.044715)))
    torch.testing.assert_close(ops.gelu_tanh_mul(gate, up), torch.tensor([3 * gelu]))


def test_rope_turns_pairs_and_keeps_lengths() -> None:
    frequencies = ops.rope_frequencies(4, 10000.0, None)
    cos, sin = ops.rope_tables(torch.tensor([0, 5]), frequencies)
    x = torch.tensor([[[1.0, 2.0, 3.0, 4.0]], [[1.0, 2.0, 3.0, 4.0]]])
    turned = ops.apply_rope(x, cos, sin)
    torch.testing.assert_close(turned[0], x[0])
    angle = 5.0
    assert turned[1, 0, 0] == pytest.approx(1 * math.cos(angle) - 3 * math.sin(angle), abs=1e-5)
    assert turned[1, 0, 2] == pytest.approx(3 * math.cos(angle) + 1 * math.sin(angle), abs=1e-5)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
