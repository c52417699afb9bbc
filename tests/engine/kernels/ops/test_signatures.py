"""Declared signatures against what operators do: what they write to, and the shapes that tracing is told."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tandem.engine.kernels import ops

X = torch.randn((3, 32), generator=torch.Generator().manual_seed(0))
NORM = torch.ones(32)
CODES = torch.randint(0, 256, (8, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
SCALE = torch.ones(8, 1)
QUANTIZED = (CODES, SCALE, None, "int8")
INTS = torch.tensor([0, 1, 2], dtype=torch.int32)
SLOTS = torch.tensor([0, 5, -1])
HEADS = torch.randn((3, 2, 16), generator=torch.Generator().manual_seed(0))
QKV = torch.randn((3, 64), generator=torch.Generator().manual_seed(0))


def cache() -> torch.Tensor:
    return torch.zeros(2, 4, 1, 4, 16)


CALLS: dict[str, tuple[Any, ...]] = {
    "round_activations": (X, "int8_token"),
    "dequantize": (*QUANTIZED, torch.bfloat16),
    "quantized_linear": (X, *QUANTIZED, "int8_group", torch.ones(8)),
    "int8_linear": (*ops.quantize_tokens(X), *QUANTIZED, None, torch.bfloat16),
    "quantized_embedding": (INTS, *QUANTIZED, torch.bfloat16),
    "rms_norm": (X, NORM, 1e-5),
    "rms_norm_quantized": (X, NORM, 1e-5),
    "add_rms_norm": (X, X + 1, NORM, 1e-5, None),
    "add_rms_norm_quantized": (X, X + 1, NORM, 1e-5, NORM),
    "gate": (X, "silu"),
    "gate_quantized": (X, "gelu_tanh"),
    "write_kv": (HEADS[:, :1], HEADS[:, 1:], SLOTS, cache()),
    "rope_write": (QKV, None, None, torch.ones(9, 16), INTS, SLOTS, cache(), 2, 1, 0.0),
    "attention": (HEADS, cache(), INTS, INTS[:2] + 1, torch.zeros((2, 1), dtype=torch.int32), 0.25, None, None),
}


@pytest.mark.parametrize("name", sorted(CALLS))
def test_the_operator_keeps_to_its_signature(name: str) -> None:
    operator = getattr(torch.ops.tandem, name).default
    torch.library.opcheck(operator, CALLS[name], test_utils=("test_schema", "test_faketensor"))


def test_every_operator_is_checked() -> None:
    operators = {name for name in ops.__all__ if hasattr(getattr(ops, name), "_qualname")}
    assert operators == set(CALLS)


@pytest.mark.parametrize("name", sorted(CALLS))
def test_only_caches_are_written(name: str) -> None:
    schema = getattr(torch.ops.tandem, name).default._schema
    written = [argument.name for argument in schema.arguments if argument.alias_info is not None]
    assert written == (["cache"] if name in ("write_kv", "rope_write") else [])
