"""A loopback server for tests of fetching."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.engine.loading import loopback
from tests.engine.loading.loopback import Loopback


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
