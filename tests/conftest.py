"""What many tests share: the real models, where they are in the cache."""

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
    return _cached("smollm2-135m")


@pytest.fixture(scope="session")
def gemma3() -> Path:
    """Gemma 3 270M's file, where somebody has pulled it: it is 250 MB."""
    return _cached("gemma3-270m")


@pytest.fixture(scope="session")
def smollm2_engine(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default model as an engine file in float32: the compiled engine gives exactly what the paged one gives."""
    from tandem.compiler.build import build_engine_file
    from tandem.compiler.progress import SilentStages
    from tandem.config.build import BuildOptions
    from tandem.engine.kernels.cpu.native import load_kernels

    kernels, reason = load_kernels()
    if kernels is None:
        pytest.skip(f"no native kernels: {reason}")
    path = tmp_path_factory.mktemp("engines") / "smollm2-float32.engine"
    build_engine_file(BuildOptions(model=str(smollm2), output=str(path), precision="float32"), SilentStages())
    return path


def _cached(name: str) -> Path:
    """Never fetched by a test: nothing but the loopback interface is touched."""
    from tandem.engine.loading.sources import resolve

    try:
        return resolve(name, offline=True)
    except TandemError as error:
        pytest.skip(f"{error} Run `tandem pull {name}`.")
