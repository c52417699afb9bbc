"""Where these tests run: in a process of their own with TRITON_INTERPRET=1, started by `test_in_interpreter.py`.

The variable must be set before triton is first imported, and would change it for whoever else imports it in the same
process. On a machine with a GPU they also run directly, and then on the GPU.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
import torch

HAS_TRITON = importlib.util.find_spec("triton") is not None
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
OUTSIDE = {"test_in_interpreter.py", "test_compiling.py"}
"""Those that start other processes."""
_tests = {path.name for path in Path(__file__).parent.glob("test_*.py")}
collect_ignore: list[str] = sorted(OUTSIDE if IS_INTERPRETED else _tests - OUTSIDE)
if HAS_TRITON and torch.cuda.is_available():
    collect_ignore = []


@pytest.fixture
def device() -> torch.device:
    return torch.device("cpu" if IS_INTERPRETED else "cuda")
