"""The operators around the KV cache against `kernels/reference.py`: what they write, and what they leave alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tandem.engine.kernels import ops, reference
from tandem.engine.kernels.step import GroupTensors, StepTensors

HEADS, KV_HEADS, DIM, BLOCK, BLOCKS = 4, 2, 16, 4, 9
EPS = 1e-5
POSITIONS = torch.tensor([3, 4, 5, 0, 0], dtype=torch.int32)
SLOTS = torch.tensor([19, 4, 5, 32, -1])
"""Positions 3, 4, 5 of a sequence in blocks 4 and 1, position 0 of one in block 8, and padding."""


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def table() -> Tensor:
    cos, sin = reference.rope_tables(torch.arange(32), reference.rope_frequencies(DIM, 1e4, None))
    return torch.cat([cos[:, 0], sin[:, 0]], dim=-1)


def empty_cache() -> Tensor:
    return torch.full((2, BLOCKS, KV_HEADS, BLOCK, DIM), 7.0)


def test_write_kv_stores_at_slots_and_skips_padding() -> None:
    cache, keys, values = empty_cache(), random(5, KV_HEADS, DIM), random(5, KV_HEADS, DIM, seed=1)
    ops.write_kv(keys, values, SLOTS, cache)
    assert torch.equal(cache[0, 4, :, 3], keys[0])
    assert torch.equal(cache[1, 1, :, 1], values[2])
    assert torch.equal(cache[1, 8, :, 0], values[3])
    assert int((cache != 7.0).sum()) == 2 * 4 * KV_HEADS * DIM


@pytest.mark.parametrize("slots", [SLOTS, SLOTS.int()])
@pytest.mark.parametrize("with_norms", [False, True])
def test_rope_write_is_norm_rotation_and_write(with_norms: bool, slots: Tensor) -> None:
    qkv = random(5, (HEADS + 2 * KV_HEADS) * DIM)
    norms = (random(DIM, seed=5), random(DIM, seed=6)) if with_norms else (None, None)
    cache, wanted_cache = empty_cache(), empty_cache()
    got = ops.rope_write(qkv, *norms, table(), POSITIONS, slots, cache, HEADS, KV_HEADS, EPS)

    queries, keys, values = torch.split(qkv.view(5, -1, DIM), [HEADS, KV_HEADS, KV_HEADS], dim=1)
    if norms[0] is not None and norms[1] is not None:
        queries, keys = (reference.rms_norm(x, w, EPS) for x, w in ((queries, norms[0]), (keys, norms[1])))
    rope = reference.rope_tables(POSITIONS, reference.rope_frequencies(DIM, 1e4, None))
    reference.write_kv(wanted_cache, reference.apply_rope(keys, *rope), values, SLOTS)
    assert torch.allclose(got, reference.apply_rope(queries, *rope), atol=1e-6)
    assert torch.allclose(cache, wanted_cache, atol=1e-6)


@pytest.mark.parametrize(("window", "soft_cap"), [(None, None), (3, None), (None, 2.0)])
def test_attention_is_the_references_and_leaves_padding_alone(window: int | None, soft_cap: float | None) -> None:
    cache, queries = random(2, BLOCKS, KV_HEADS, BLOCK, DIM), random(6, HEADS, DIM, seed=2)
    starts, lengths = torch.tensor([0, 3, 4], dtype=torch.int32), torch.tensor([6, 1], dtype=torch.int32)
    blocks = torch.tensor([[4, 1], [8, -1]], dtype=torch.int32)
    before = cache.clone()
    got = ops.attention(queries, cache, starts, lengths, blocks, 0.25, window, soft_cap)
    step = StepTensors(starts, starts, starts, lengths, [], starts)
    wanted = reference.paged_attention(
        queries[:4], cache, step, GroupTensors(blocks, SLOTS), scale=0.25, window=window, soft_cap=soft_cap
    )
    assert torch.equal(got[:4], wanted)
    assert got[4:].isfinite().all()
    assert torch.equal(cache, before)
