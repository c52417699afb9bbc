"""RoPE with bias, norms and the KV write, against the reference's steps one by one."""

from __future__ import annotations

import pytest
import torch

from tests.engine.kernels.triton.cases import RopeCase, rope_errors

CASES = {
    "plain": RopeCase(),
    "bias": RopeCase(bias=True),
    "norms": RopeCase(norms=True, heads=3, kv_heads=1),
    "all": RopeCase(bias=True, norms=True, dim=80, heads=7, kv_heads=1, block_size=1),
    "many heads": RopeCase(heads=32, kv_heads=8, tokens=3, dim=128),
    "block size 64": RopeCase(block_size=64, dim=48),
}


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_the_reference(name: str, device: torch.device) -> None:
    assert max(rope_errors(CASES[name], device)) < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("norms", [False, True])
def test_narrow_types_round_where_the_reference_does(dtype: torch.dtype, norms: bool, device: torch.device) -> None:
    """Within two last digits of numbers up to 16: the interpreter cuts bfloat16 off where a GPU rounds it."""
    case = RopeCase(dtype=dtype, norms=norms, bias=True)
    assert max(rope_errors(case, device)) <= 16 * torch.finfo(dtype).eps


def test_kv_of_another_type(device: torch.device) -> None:
    assert max(rope_errors(RopeCase(kv_dtype=torch.bfloat16), device)) < 0.02


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_int8_is_within_half_a_step(dtype: torch.dtype, device: torch.device) -> None:
    query_error, steps = rope_errors(RopeCase(dtype=dtype, kv_dtype=torch.int8, norms=dtype == torch.float32), device)
    assert query_error < (1e-5 if dtype == torch.float32 else 0.05)
    assert steps < 0.502
