"""Operators on Triton's kernels, in a process whose triton interprets them on the CPU, against the plain ones here."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.engine.kernels.ops.test_signatures import CALLS

ROOT = Path(__file__).parents[4]
SCRIPT = """
import sys, torch
import tandem.engine.kernels.ops
from tandem.engine.kernels.ops import backend
assert backend.on_triton(torch.ones(1))
calls = torch.load(sys.argv[1])
torch.save([(getattr(torch.ops.tandem, name)(*args), args) for name, args in calls], sys.argv[2])
"""


def attention_calls() -> list[tuple[str, tuple[Any, ...]]]:
    """Two tokens of a prompt beside a token that is generated; and a step in which all sequences generate."""
    generator = torch.Generator().manual_seed(1)
    queries, cache = torch.randn((3, 2, 16), generator=generator), torch.randn((2, 4, 1, 4, 16), generator=generator)
    mixed = (torch.tensor([0, 2, 3]).int(), torch.tensor([6, 3]).int(), torch.tensor([[1, 3], [2, 0]]).int())
    only = (torch.arange(4).int(), torch.tensor([6, 3, 1]).int(), torch.tensor([[1, 3], [2, 0], [0, 0]]).int())
    return [("attention", (queries, cache, *step, 0.25, window, 3.0)) for step in (mixed, only) for window in (None, 2)]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="the package triton is not installed")
def test_operators_on_tritons_kernels(tmp_path: Path) -> None:
    calls = [(name, CALLS[name]) for name in ("rms_norm", "add_rms_norm", "gate", "rope_write")] + attention_calls()
    torch.save(calls, tmp_path / "calls")
    subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "calls"), str(tmp_path / "results")],
        cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        check=True,
    )
    for (name, args), (result, written) in zip(
        torch.load(tmp_path / "calls"), torch.load(tmp_path / "results"), strict=True
    ):
        wanted = getattr(torch.ops.tandem, name)(*args)
        torch.testing.assert_close(result, wanted, atol=2e-5, rtol=1e-5)
        for left, right in zip(args, written, strict=True):
            if isinstance(left, Tensor):
                torch.testing.assert_close(right, left, atol=2e-5, rtol=1e-5)
