"""The attention operator on Triton's kernels: padded steps, steps of as many tokens as sequences, int8 KV."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tandem.engine.kernels import ops, reference
from tandem.engine.kernels.ops.kv_cache import cache_shape, split_cache, store, widened
from tandem.engine.kernels.step import GroupTensors, StepTensors

HEADS, KV_HEADS, DIM, BLOCK, BLOCKS = 4, 2, 32, 4, 10


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def filled_cache(dtype: torch.dtype, device: torch.device) -> Tensor:
    cache = torch.zeros(cache_shape(BLOCKS, KV_HEADS, BLOCK, DIM, dtype), dtype=dtype)
    keys, values = (random(BLOCKS * BLOCK, KV_HEADS, DIM, seed=seed) for seed in (1, 2))
    store(cache, keys, values, torch.arange(BLOCKS * BLOCK))
    return cache.to(device)


CASES = {
    "prompt beside tokens": ([1, 5, 1, 3], [9, 5, 4, 8], 0, 0),
    "as many tokens as sequences": ([2, 0, 1], [7, 0, 3], 0, 0),
    "padded sequences": ([2, 1], [7, 3], 0, 2),
    "padded tokens": ([2, 1], [7, 3], 3, 0),
    "both": ([1, 4, 1], [16, 4, 1], 2, 2),
    "one token": ([1], [6], 0, 0),
}
"""Queries, contexts, tokens and sequences of padding."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("name", CASES)
def test_attention_sees_what_each_sequence_has(
    name: str, window: int | None, dtype: torch.dtype, device: torch.device
) -> None:
    queries_by_sequence, contexts, spare_tokens, spare_sequences = CASES[name]
    used = sum(queries_by_sequence)
    starts = torch.tensor([0, *queries_by_sequence], dtype=torch.int32).cumsum(0).int()
    starts = torch.cat([starts, starts.new_full((spare_sequences,), used)]).to(device)
    lengths = torch.tensor([*contexts, *[0] * spare_sequences], dtype=torch.int32, device=device)
    blocks = torch.randperm(BLOCKS, generator=torch.Generator().manual_seed(3)).int()
    tables = blocks[torch.arange(len(lengths) * 4).view(-1, 4) % BLOCKS].to(device)
    cache, queries = filled_cache(dtype, device), random(used + spare_tokens, HEADS, DIM, seed=4).to(device)
    got = ops.attention(queries, cache, starts, lengths, tables, 0.2, window, None)
    step = StepTensors(starts, starts, starts, lengths, [], starts)
    group = GroupTensors(tables, starts)
    expected = reference.paged_attention(queries[:used], widened(cache), step, group, scale=0.2, window=window)
    assert (got[:used] - expected).abs().max() < 1e-5


@pytest.mark.parametrize("size", [3, 4, 8])
def test_a_bucket_of_single_tokens(size: int, device: torch.device) -> None:
    lengths = torch.tensor([9, 4, 16, *[0] * (size - 3)], dtype=torch.int32, device=device)
    tables = (torch.arange(size * 4).view(size, 4) % BLOCKS).int().to(device)
    cache, queries = filled_cache(torch.float32, device), random(size, HEADS, DIM, seed=4).to(device)
    unused = torch.full((size + 1,), -7, dtype=torch.int32, device=device)
    got = ops.attention(queries, cache, unused, lengths, tables, 0.2, None, None, True)
    starts = torch.arange(4, device=device).int()
    step = StepTensors(starts, starts, starts, lengths[:3], [], starts)
    expected = reference.paged_attention(queries[:3], cache, step, GroupTensors(tables, starts), scale=0.2)
    assert (got[:3] - expected).abs().max() < 1e-5
    assert not got[3:].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
def test_rope_write_skips_padding(dtype: torch.dtype, device: torch.device) -> None:
    cache = torch.zeros(cache_shape(BLOCKS, KV_HEADS, BLOCK, DIM, dtype), dtype=dtype, device=device)
    qkv = random(4, (HEADS + 2 * KV_HEADS) * DIM).to(device)
    table = random(16, DIM, seed=5).to(device)
    positions = torch.tensor([3, 4, 0, 0], dtype=torch.int32, device=device)
    slots = torch.tensor([7, 20, -1, -1], device=device)
    ops.rope_write(qkv, None, None, table, positions, slots, cache, HEADS, KV_HEADS, 1e-5)
    here = table[positions.long()].unsqueeze(1)
    keys = reference.apply_rope(qkv.view(4, -1, DIM)[:, HEADS : HEADS + KV_HEADS], *here.chunk(2, dim=-1))
    expected = torch.zeros_like(cache)
    store(expected, keys, qkv.view(4, -1, DIM)[:, HEADS + KV_HEADS :], slots)
    largest = keys.abs().max()
    assert (widened(cache) - widened(expected)).abs().max() <= largest / 127 * (0.01 if dtype == torch.float32 else 1)
    assert int((widened(cache) != 0).any(-1).sum()) == 2 * 2 * KV_HEADS


@pytest.mark.parametrize(("num_blocks", "dim"), [(1, 32), (7, 32), (8, 32), (9, 32), (1000, 80), (33, 128)])
def test_an_int8_cache_knows_its_blocks(num_blocks: int, dim: int, device: torch.device) -> None:
    shape = cache_shape(num_blocks, KV_HEADS, BLOCK, dim, torch.int8)
    data, scales = split_cache(torch.zeros(shape, dtype=torch.int8, device=device))
    assert data.shape == (2, num_blocks, KV_HEADS, BLOCK, dim)
    assert scales is not None
    assert scales.shape == data.shape[:-1]
    scales.fill_(1.0)
    assert not data.any()
