"""The real models, from the cache or fetched into it; tests that need them are skipped where neither works."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.core.errors import TandemError
from tandem.engine.loading.sources import resolve


@pytest.fixture(scope="session")
def smollm2() -> Path:
    try:
        return resolve("smollm2-135m")
    except TandemError as error:
        pytest.skip(f"smollm2-135m isn't at hand: {error}")


@pytest.fixture(scope="session")
def gemma3() -> Path:
    """Only from the cache: it is 250 MB (`tandem pull gemma3-270m` brings it there)."""
    try:
        return resolve("gemma3-270m", offline=True)
    except TandemError as error:
        pytest.skip(f"gemma3-270m isn't at hand: {error}")
