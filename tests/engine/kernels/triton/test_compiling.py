"""Every kernel compiles for real GPUs, down to machine code, with no GPU here, and fits their shared memory.

The interpreter accepts much that the compiler refuses, so this is half of what a GPU would tell. Launches are caught
and compiled for the types and sizes that they would have had.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="the package triton is not installed"
)

POINTERS = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
SHARED_BYTES = 99 << 10
"""Of a program at most, on GPUs of compute capability 8.6 and 8.9; larger ones have more."""


class Compiler:
    """Stands in for a kernel: compiles what would be launched. `made` says what, with bytes of shared memory."""

    def __init__(self, kernel: Any, capability: int, made: list[tuple[str, int]]) -> None:
        self.kernel = kernel
        self.capability = capability
        self.made = made

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return self.compile

    def compile(self, *arguments: Any, **named: Any) -> None:
        import triton  # type: ignore[import-untyped,import-not-found,unused-ignore]
        from triton.backends.compiler import (  # type: ignore[import-untyped,import-not-found,unused-ignore]
            GPUTarget,
        )

        options = {name: named.pop(name) for name in ("num_warps", "num_stages") if name in named}
        signature: dict[str, str] = {}
        aligned: dict[tuple[int], list[list[Any]]] = {}
        for index, (name, value) in enumerate(zip(self.kernel.arg_names, arguments, strict=False)):
            if isinstance(value, torch.Tensor):
                signature[name] = POINTERS[value.dtype]
                aligned[(index,)] = [["tt.divisibility", 16]]
            else:
                signature[name] = "fp32" if isinstance(value, float) else "i32"
        signature |= dict.fromkeys(named, "constexpr")
        source = triton.compiler.ASTSource(self.kernel, signature, named, aligned)
        compiled = triton.compile(source, target=GPUTarget("cuda", self.capability, 32), options=options)
        self.made.append((self.kernel.__name__, compiled.metadata.shared))


@pytest.fixture
def catch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[int], list[tuple[str, int]]]:
    from tandem.engine.kernels.triton import activation, attention, norms, quantized_linear, rope_kv, sampling

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))

    def start(capability: int) -> list[tuple[str, int]]:
        made: list[tuple[str, int]] = []
        for module in (activation, attention, norms, quantized_linear, rope_kv, sampling):
            for name in [n for n in vars(module) if n.endswith("_kernel")]:
                monkeypatch.setattr(module, name, Compiler(getattr(module, name), capability, made))
        return made

    return start


@pytest.mark.parametrize(
    ("dtype", "kv_dtype", "dim", "capability"),
    [
        (torch.bfloat16, torch.bfloat16, 128, 90),
        (torch.bfloat16, torch.int8, 64, 90),
        (torch.bfloat16, torch.bfloat16, 256, 80),
        (torch.float32, torch.float32, 64, 90),
        (torch.float16, torch.float32, 64, 90),
    ],
)
def test_attention(catch: Any, dtype: torch.dtype, kv_dtype: torch.dtype, dim: int, capability: int) -> None:
    from tests.engine.kernels.triton.cases import Case, RopeCase, attention_error, rope_errors

    made = catch(capability)
    windowed: dict[str, Any] = {"window": 40, "soft_cap": 30.0} if dim != 128 else {}
    case = Case(
        queries=(1, 60), contexts=(50, 60), heads=8, dim=dim, dtype=dtype, kv_dtype=kv_dtype, splits=4, **windowed
    )
    attention_error(case, torch.device("cpu"))
    attention_error(replace(case, decides_on_device=True), torch.device("cpu"))
    rope_errors(RopeCase(dtype=dtype, kv_dtype=kv_dtype, dim=dim, bias=True, norms=True), torch.device("cpu"))
    assert sorted({name for name, _ in made}) == ["attention_kernel", "mix_splits_kernel", "rope_kv_kernel"]
    assert max(shared for _, shared in made) <= SHARED_BYTES


def test_the_small_kernels(catch: Any) -> None:
    from tandem.engine.kernels.triton import activation, norms, sampling

    made = catch(90)
    x = torch.zeros(2, 4096, dtype=torch.bfloat16)
    norms.rms_norm(x, x[0], 1e-5)
    norms.add_rms_norm(x, x, x[0], 1e-5, inner_weight=x[0])
    for name in ("silu", "gelu_tanh"):
        activation.gated(x, name)
    column = torch.ones(2)
    params = sampling.DrawParams(column, column.int(), column.double(), column, column.double())
    sampling.draw(torch.zeros(2, 128256), params)
    sampling.draw_likely(torch.zeros(2, 128256), params)
    assert len({name for name, _ in made}) == 7
    assert max(shared for _, shared in made) <= SHARED_BYTES


@pytest.mark.parametrize(
    ("kind", "group", "dtype", "capability"),
    [
        ("int8", 0, torch.bfloat16, 80),
        ("int8", 128, torch.bfloat16, 90),
        ("int8", 0, torch.int8, 90),
        ("int8", 0, torch.int8, 80),
        ("int4x2", 128, torch.bfloat16, 90),
        ("int4x2", 32, torch.bfloat16, 80),
        ("int4x2", 128, torch.int8, 90),
        ("fp8", 0, torch.bfloat16, 80),
        ("fp8", 0, torch.bfloat16, 90),
        ("int8", 64, torch.float32, 80),
        ("int4x2", 64, torch.float16, 90),
    ],
)
def test_quantised_products(
    catch: Any, monkeypatch: pytest.MonkeyPatch, kind: str, group: int, dtype: torch.dtype, capability: int
) -> None:
    from tandem.engine.kernels.triton import quantized_linear as products

    made = catch(capability)
    monkeypatch.setattr(products, "num_processors", lambda device: 132)  # as many as split the inputs
    inputs = 4096
    codes = torch.zeros(1024, inputs // 2 if kind == "int4x2" else inputs, dtype=torch.uint8)
    scale = torch.ones(1024, inputs // group if group else 1)
    weights = products.Weights(codes, scale, scale if kind == "int4x2" else None, kind)
    out = torch.bfloat16 if dtype == torch.int8 else dtype
    for tokens in (1, 40, 300):
        x_scale = torch.ones(tokens) if dtype == torch.int8 else None
        products.quantized_linear(torch.zeros(tokens, inputs, dtype=dtype), weights, x_scale=x_scale, dtype=out)
    products.quantized_embedding(torch.zeros(3, dtype=torch.int32), weights, out)
    expected = ["quantized_embedding_kernel", "quantized_linear_kernel", "sum_splits_kernel"]
    assert sorted({name for name, _ in made}) == expected
    assert max(shared for _, shared in made) <= SHARED_BYTES
