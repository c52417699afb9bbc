"""Runs the other tests of this folder in a process whose triton interprets kernels on the CPU."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[3]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="the package triton is not installed")
def test_kernels_in_tritons_interpreter() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(HERE)],
        cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]


def test_without_triton_there_is_a_reason() -> None:
    script = """
import sys
sys.modules["triton"] = None
from tandem.core.errors import ConfigError
from tandem.engine.kernels.triton import unavailable_reason
try:
    import tandem.engine.runner.cuda
except ConfigError as error:
    print(error.message)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "need the package triton" in result.stdout
