"""Paged attention against the reference: prompts and single tokens, odd sizes, windows, caps, block borders."""

from __future__ import annotations

import pytest
import torch

from tandem.engine.kernels.triton.attention import choose_splits, choose_tiles
from tests.engine.kernels.triton.cases import Case, Paged, attention_error

CASES = {
    "one token": Case(queries=(1,), contexts=(1,)),
    "around block borders": Case(queries=(1, 1, 1, 1), contexts=(15, 16, 17, 33)),
    "mixed": Case(queries=(1, 1, 5, 21), contexts=(40, 9, 5, 50)),
    "single token behind a prompt": Case(queries=(3, 1, 2), contexts=(70, 33, 2), with_rows=True),
    "odd heads": Case(queries=(1, 19), contexts=(30, 19), heads=7, kv_heads=1, dim=48),
    "no groups": Case(queries=(1, 19), contexts=(30, 40), heads=3, kv_heads=3, dim=80),
    "twenty in a group": Case(queries=(1, 3), contexts=(30, 40), heads=20, kv_heads=1),
    "block size 1": Case(queries=(1, 9), contexts=(70, 12), block_size=1),
    "block size 64": Case(queries=(1, 9), contexts=(130, 64), block_size=64),
    "block size 256": Case(queries=(1, 9), contexts=(130, 258), block_size=256, dim=64),
    "window": Case(queries=(1, 1, 40, 9), contexts=(150, 10, 60, 200), window=33, block_size=4),
    "window of one": Case(queries=(1, 5), contexts=(20, 20), window=1),
    "soft cap": Case(queries=(1, 17), contexts=(30, 40), soft_cap=3.0),
    "wide heads": Case(queries=(1, 5), contexts=(70, 20), dim=256, window=50, soft_cap=5.0),
    "long prompt": Case(queries=(150,), contexts=(170,), dim=64),
    "splits": Case(queries=(1, 1, 1), contexts=(300, 70, 1), splits=4, with_rows=True),
    "splits and window": Case(queries=(1, 1), contexts=(300, 40), splits=3, window=100, dim=80),
    "splits beside a prompt": Case(queries=(1, 1, 6), contexts=(200, 130, 40), splits=5),
}
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 0.03, torch.float16: 0.004}


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_the_reference(name: str, device: torch.device) -> None:
    assert attention_error(CASES[name], device) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8])
def test_types(dtype: torch.dtype, kv_dtype: torch.dtype, device: torch.device) -> None:
    case = Case(queries=(1, 1, 6), contexts=(40, 17, 9), dtype=dtype, kv_dtype=kv_dtype, splits=2)
    assert attention_error(case, device) < TOLERANCE[dtype]


def test_padding_reads_nothing_and_gives_zeros(device: torch.device) -> None:
    from tandem.engine.kernels.triton.attention import StepLayout, paged_attention

    paged = Paged(Case(queries=(1, 1), contexts=(20, 20)), device)
    paged.step.context_len[1] = 0
    queries = paged.random(2, 4, 32)
    for splits in (1, 3):
        layout = StepLayout(2, 2, 1, 512)
        got = paged_attention(queries, paged.kv, paged.step, paged.group, layout, scale=1.0, num_splits=splits)
        assert not got[0].isnan().any()
        assert torch.equal(got[1], torch.zeros_like(got[1]))


@pytest.mark.parametrize("head_dim", [32, 64, 80, 96, 128, 192, 256])
@pytest.mark.parametrize("element_bytes", [2, 4])
@pytest.mark.parametrize("rows", [1, 8, 17, 400])
def test_tiles_fit_small_shared_memories(head_dim: int, element_bytes: int, rows: int) -> None:
    tiles = choose_tiles(rows, head_dim, element_bytes)
    row_bytes = (1 << (head_dim - 1).bit_length()) * element_bytes
    assert (tiles.rows + 4 * tiles.keys) * row_bytes <= 97 << 10


def test_splits_fill_the_processors_but_stay_long_enough() -> None:
    assert choose_splits(8, 1 << 17, 132) == 32
    assert choose_splits(8, 1024, 132) == 8
    assert choose_splits(128 * 8, 1 << 17, 132) == 1
    assert choose_splits(8, 100, 132) == 1
