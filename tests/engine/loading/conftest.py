"""The real models, from the cache or fetched into it; and a loopback server for tests of fetching."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem.core.errors import TandemError
from tandem.engine.loading.sources import resolve
from tests.engine.loading import loopback
from tests.engine.loading.loopback import Loopback


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


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loopback]:
    """A server of our own, reached without the proxies and indexes of this machine."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_PROXY"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    served = Loopback()
    server = loopback.start(served)
    yield served
    server.shutdown()
    server.server_close()
