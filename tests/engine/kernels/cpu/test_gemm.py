"""The products of every instruction set beside torch, at all row counts and at edges of N and K."""

from __future__ import annotations

import pytest
import torch

from tandem.engine.kernels.cpu.native import DTYPES, VARIANTS, Kernels

SHAPES = [(1, 1), (31, 33), (32, 64), (40, 96), (65, 130), (97, 576)]


def product(kernels: Kernels, variant: str, dtype: str, a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.full((len(a), len(w)), float("nan"))
    pointers = (a.data_ptr(), w.data_ptr(), out.data_ptr())
    wrong = kernels.library.tandem_gemm(VARIANTS.index(variant), DTYPES[dtype], len(a), len(w), a.shape[1], *pointers)
    assert wrong == 0
    return out


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_products_of_one_to_seventy_rows(kernels: Kernels, variant: str, dtype: str) -> None:
    torch.manual_seed(0)
    for n, k in SHAPES:
        a, w = torch.randn(70, k), torch.randn(n, k)
        if dtype == "bfloat16":
            a, w = a.bfloat16().float(), w.bfloat16().float()
        expected = (a.double() @ w.double().T).float()
        whole = product(kernels, variant, dtype, a, w)
        assert (whole - expected).abs().max() < 2e-6 * k + 1e-5
        for m in range(1, 70):
            rows = product(kernels, variant, dtype, a[:m], w)
            assert torch.equal(rows, whole[:m]), f"{m} rows of {n}x{k} differ from the same rows among 70"


def test_probe_accepts_what_runs(kernels: Kernels, variant: str) -> None:
    assert kernels.library.tandem_probe(VARIANTS.index(variant)) == 0
