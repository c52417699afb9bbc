"""What many tests share: the real default model, where it can be had."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tandem.core.errors import TandemError

# Before torch is loaded: tests run beside real servers, and threads that spin would starve each other.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The default model's file. `make test` fetches it first; without it the tests that need it are skipped."""
    from tandem.engine.loading.sources import resolve

    try:
        return resolve("smollm2-135m", offline=True)
    except TandemError as error:
        pytest.skip(f"the default model isn't here: {error}; run `tandem pull`")
