"""Databases for the tests of the store: each test that asks for `address` runs on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tandem.config.gateway_store import StoreConfig
from tandem.gateway.store.database import Database
from tests.gateway.store.databases import Cluster, running_cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as running:
        yield running


@pytest.fixture(params=["sqlite", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'state.db'}"
    cluster: Cluster = request.getfixturevalue("cluster")
    return cluster.new_database()


@pytest.fixture
def store_config(tmp_path: Path) -> StoreConfig:
    """Quick enough for tests."""
    return StoreConfig(
        data_dir=str(tmp_path / "data"), retry_s=0.05, ledger_flush_s=0.01, limits_sync_s=0.05, keys_refresh_s=0.05,
        lease_ttl_s=0.3, statement_timeout_s=20.0, database_threads=2,
    )  # fmt: skip


@pytest.fixture
async def database(address: str, store_config: StoreConfig) -> AsyncIterator[Database]:
    made = Database(address, store_config)
    await made.start()
    yield made
    await made.close()
