"""The products of every instruction set beside torch, at all row counts and at edges of N and K."""

from __future__ import annotations

import ctypes
from typing import Literal

import pytest
import torch

from tandem.core.errors import ModelUnsupported
from tandem.engine.kernels.cpu.native import DTYPES, VARIANTS, Kernels
from tandem.engine.kernels.cpu.weights import PANEL, Weight, form_of
from tandem.engine.kernels.ops.activations import rounded
from tandem.engine.quantization.fp8 import round_to_fp8
from tandem.engine.quantization.matrix import Activations, QuantizedMatrix
from tandem.engine.quantization.rounding import round_matrix

SHAPES = [(1, 1), (31, 33), (32, 64), (40, 96), (65, 130), (97, 576)]
ROWS = 39


def product(kernels: Kernels, variant: str, a: torch.Tensor, w: Weight) -> torch.Tensor:
    n, k = w.shape
    form, library, padded = form_of(w), kernels.library, -(-n // PANEL) * PANEL
    packed = torch.zeros(padded // PANEL * library.tandem_panel_bytes(ctypes.byref(form), k), dtype=torch.uint8)
    rows = torch.cat([torch.arange(n), torch.full((padded - n,), -1)]).int()
    values = w.codes if isinstance(w, QuantizedMatrix) else w
    dtype = DTYPES["uint8" if isinstance(w, QuantizedMatrix) else str(w.dtype).removeprefix("torch.")]
    scale, offset = (w.scale, w.offset) if isinstance(w, QuantizedMatrix) else (None, None)
    numbers = [t.contiguous().data_ptr() if t is not None else None for t in (scale, offset)]
    library.tandem_pack(
        ctypes.byref(form), padded, k, rows.data_ptr(), values.data_ptr(), dtype, *numbers, packed.data_ptr()
    )
    out = torch.full((len(a), padded), float("nan"))
    pointers = (a.data_ptr(), packed.data_ptr(), out.data_ptr())
    assert library.tandem_gemm(VARIANTS.index(variant), ctypes.byref(form), len(a), padded, k, *pointers) == 0
    assert not out[:, n:].any(), "padding must give zeros"
    return out[:, :n].contiguous()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_products_of_one_to_seventy_rows(kernels: Kernels, variant: str, dtype: str) -> None:
    torch.manual_seed(0)
    for n, k in SHAPES:
        a, w = torch.randn(70, k), torch.randn(n, k)
        if dtype == "bfloat16":
            a, w = a.bfloat16().float(), w.bfloat16()
        expected = (a.double() @ w.double().T).float()
        whole = product(kernels, variant, a, w)
        assert (whole - expected).abs().max() < 2e-6 * k + 1e-5
        for m in range(1, 70):
            rows = product(kernels, variant, a[:m], w)
            assert torch.equal(rows, whole[:m]), f"{m} rows of {n}x{k} differ from the same rows among 70"


# kind, group (0: a row), symmetric, activations
FORMS: list[tuple[Literal["int8", "int4"], int, bool, Activations]] = [
    ("int8", 0, True, "int8_token"),
    ("int8", 0, False, "int8_token"),
    ("int8", 0, True, "int8_group"),
    ("int8", 0, False, "int8_group"),
    ("int8", 32, True, "int8_group"),
    ("int8", 64, False, "int8_group"),
    ("int8", 32, True, "int8_token"),
    ("int4", 32, True, "int8_group"),
    ("int4", 32, False, "int8_group"),
    ("int4", 64, True, "int8_group"),
    ("int4", 128, False, "int8_group"),
    ("int4", 128, True, "int8_token"),
    ("int4", 64, False, "int8_token"),
]
IDS = [f"{kind} {group} {'symmetric' if symmetric else 'offset'} {a}" for kind, group, symmetric, a in FORMS]


def inputs_of(rows: int, k: int, activations: Activations) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs, one row of them zeros, and what they are rounded to."""
    a = torch.randn(rows, k)
    a[3] = 0
    # Rounded values are taken as inputs: rounding them again changes nothing, on which side ever a tie would have gone.
    a = rounded(a, activations)
    return a, rounded(a, activations).double()


@pytest.mark.parametrize(("kind", "group", "symmetric", "activations"), FORMS, ids=IDS)
def test_integer_products(
    kernels: Kernels, variant: str, kind: Literal["int8", "int4"], group: int, symmetric: bool, activations: Activations
) -> None:
    torch.manual_seed(0)
    sizes = [(33, group), (40, 3 * group), (97, 640)]
    if group == 0:
        sizes = (
            [(1, 1), (31, 33), (65, 130), (97, 576)] if activations == "int8_token" else [(1, 32), (65, 96), (97, 576)]
        )
    for n, k in sizes:
        weights = torch.randn(n, k) + (0 if symmetric else 0.3)
        w = round_matrix(weights, kind, group or k, symmetric=symmetric, activations=activations, search=False)
        a, taken = inputs_of(ROWS, k, activations)
        expected = taken @ w.dequantize().double().T
        whole = product(kernels, variant, a, w)
        # Sums are exact in integers; what is left is the rounding of floats when the groups are added up.
        size = taken.abs() @ w.dequantize().double().abs().T
        assert (whole - expected).abs().max() <= 2e-6 * size.max(), (n, k)
        for m in (1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 16, 17, 25, 32, 33, 36, 37):
            assert torch.equal(product(kernels, variant, a[:m], w), whole[:m]), f"{m} rows of {n}x{k}"


def test_scales_that_a_half_cant_hold_stay_floats(kernels: Kernels, variant: str) -> None:
    torch.manual_seed(0)
    codes = torch.randint(0, 16, (40, 96), dtype=torch.uint8)
    for offset in (None, torch.rand(40, 3) * -1e-3):
        w = QuantizedMatrix(codes, torch.rand(40, 3) * 1e-4 + 1e-9, offset, "int4", "int8_group")
        a, taken = inputs_of(9, 96, "int8_group")
        expected = taken @ w.dequantize().double().T
        assert (product(kernels, variant, a, w) - expected).abs().max() < 2e-6 * 96 * 15e-4


def test_fp8_products(kernels: Kernels, variant: str) -> None:
    torch.manual_seed(0)
    for n, k in SHAPES:
        w = round_to_fp8(torch.randn(n, k) * torch.rand(n, k) ** 8)
        a = torch.randn(ROWS, k)
        whole = product(kernels, variant, a, w)
        assert (whole - a.double() @ w.dequantize().double().T).abs().max() < 2e-6 * k + 1e-5
        for m in (1, 2, 5, 12, 13):
            assert torch.equal(product(kernels, variant, a[:m], w), whole[:m])


def test_every_fp8_number_is_what_it_says(kernels: Kernels, variant: str) -> None:
    finite = torch.tensor([b for b in range(256) if b & 127 != 127], dtype=torch.uint8)
    w = QuantizedMatrix(finite.view(torch.float8_e4m3fn)[:, None], torch.ones(254, 1), None, "fp8", "float")
    assert torch.equal(product(kernels, variant, torch.ones(1, 1), w)[0], w.codes.float()[:, 0])


def test_groups_that_dont_fit_are_refused() -> None:
    for k, groups in ((100, 25), (96, 2)):
        codes = torch.zeros(32, k, dtype=torch.uint8)
        with pytest.raises(ModelUnsupported, match="groups of"):
            form_of(QuantizedMatrix(codes, torch.ones(32, groups), None, "int4", "int8_group"), "down_proj")


def test_probe_accepts_what_runs(kernels: Kernels, variant: str) -> None:
    assert kernels.library.tandem_probe(VARIANTS.index(variant)) == 0
