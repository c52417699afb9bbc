"""Norms of heads, RoPE and the KV write in one operator, and where that would change something."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tandem.compiler.network import rotate
from tandem.compiler.passes import rope_write
from tests.compiler.passes.small import constants, kernels, random, rewrite, traced

HEADS, KV_HEADS, DIM = 4, 2, 8
OPS = torch.ops.tandem
INPUTS = (
    random(3, (HEADS + 2 * KV_HEADS) * DIM),
    torch.tensor([4, 5, 0], dtype=torch.int32),
    torch.tensor([4, 5, -1]),
    torch.zeros(2, 3, KV_HEADS, 4, DIM),
    torch.zeros(2, 3, KV_HEADS, 4, DIM),
)
STEP = {
    "starts": torch.tensor([0, 2, 3], dtype=torch.int32),
    "lengths": torch.tensor([6, 1], dtype=torch.int32),
    "blocks": torch.tensor([[0, 1], [2, 0]], dtype=torch.int32),
}
WEIGHTS = {"table": random(9, DIM), "a": random(DIM), "b": random(DIM, seed=1)}


def block(**changes: Any) -> Any:
    """The attention of a layer, with something about it changed."""

    def function(m: Any, qkv: Tensor, positions: Tensor, slots: Tensor, cache: Tensor, other: Tensor) -> Any:
        q, k, v = torch.split(qkv, [HEADS * DIM, KV_HEADS * DIM, KV_HEADS * DIM], -1)
        queries, keys, values = q.view(-1, HEADS, DIM), k.view(-1, KV_HEADS, DIM), v.view(-1, KV_HEADS, DIM)
        if changes.get("norms"):
            queries = OPS.rms_norm(queries, m.a, 1e-5)
        if changes.get("norms") == "both":
            keys = OPS.rms_norm(keys, m.b, 1e-5)
        cos, sin = m.table.index_select(0, positions).unsqueeze(1).chunk(2, dim=-1)
        queries = rotate(queries, *((sin, cos) if changes.get("queries turned back") else (cos, sin)))
        keys = rotate(keys, cos, sin)
        OPS.write_kv(keys, keys if changes.get("keys as values") else values, slots, cache)
        read = other if changes.get("another cache") else cache
        result = OPS.attention(queries, read, m.starts, m.lengths, m.blocks, 0.3, None, None)
        return result + queries if changes.get("queries used again") else result

    return function


@pytest.mark.parametrize("norms", [None, "both"])
def test_it_is_one_operator(norms: str | None) -> None:
    graph = traced(block(norms=norms), *INPUTS, **STEP, **WEIGHTS)
    rewrite(rope_write.run, graph, *INPUTS, expected=1)
    assert kernels(graph) == ["tandem.rope_write", "tandem.attention"]
    assert constants(graph) == {*STEP, "table"} | ({"a", "b"} if norms else set())


CHANGES: list[dict[str, Any]] = [
    {"norms": "of queries only"},
    {"queries turned back": True},
    {"keys as values": True},
    {"another cache": True},
    {"queries used again": True},
]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_other_attention_stays(changes: dict[str, Any]) -> None:
    graph = traced(block(**changes), *INPUTS, **STEP, **WEIGHTS)
    rewrite(rope_write.run, graph, *INPUTS, expected=0)
