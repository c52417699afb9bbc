"""The database: tables made once by several gateways, work in threads, away and back."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, insert, select, text, update

from tandem.config.gateway_store import StoreConfig
from tandem.core.errors import ConfigError
from tandem.gateway.store import settings as shared
from tandem.gateway.store.database import Database
from tandem.gateway.store.errors import DatabaseAway
from tandem.gateway.store.tables import metadata, settings
from tests.gateway.store.databases import Cluster


def put(connection: Connection, name: str, value: str = "x") -> None:
    connection.execute(insert(settings).values(name=name, value=value))


def names(connection: Connection) -> list[str]:
    return sorted(connection.execute(select(settings.c.name)).scalars())


async def test_several_gateways_that_start_at_once_make_the_tables_once(
    address: str, store_config: StoreConfig
) -> None:
    databases = [Database(address, store_config) for _ in range(4)]
    assert await asyncio.gather(*(database.start() for database in databases)) == [True] * 4
    await databases[0].write(partial(put, name="a"))
    assert await databases[3].read(names) == ["a"]
    for database in databases:
        await database.close()


async def test_the_migrations_make_what_the_tables_say(database: Database) -> None:
    def differences(connection: Connection) -> list[object]:
        context = MigrationContext.configure(connection, opts={"version_table": "tandem_version"})
        return list(compare_metadata(context, metadata))

    assert await database.read(differences) == []


async def test_a_database_of_a_newer_version_is_refused(database: Database, address: str) -> None:
    await database.write(lambda connection: connection.execute(text("UPDATE tandem_version SET version_num = '9999'")))
    later = Database(address)
    with pytest.raises(ConfigError, match="newer Tandem"):
        await later.start()
    await later.close()


@pytest.mark.parametrize("bad", ["nonsense", "mysql://h/db", "sqlite://", "sqlite:///:memory:"])
def test_an_address_that_cannot_be_is_refused(bad: str) -> None:
    with pytest.raises(ConfigError, match="database is"):
        Database(bad)


async def test_a_failed_transaction_leaves_nothing(database: Database) -> None:
    def half(connection: Connection) -> None:
        put(connection, "half")
        raise ValueError("in the middle")

    with pytest.raises(ValueError, match="in the middle"):
        await database.write(half)
    assert await database.read(names) == []


async def test_many_writers_wait_for_each_other(database: Database) -> None:
    await asyncio.gather(*(database.write(partial(shared.bump, name="n")) for _ in range(40)))
    assert await database.read(partial(shared.number, name="n")) == 40


async def test_a_secret_is_drawn_once(database: Database) -> None:
    drawn = await asyncio.gather(*(database.write(shared.drawn_secret) for _ in range(8)))
    assert len(set(drawn)) == 1
    assert len(drawn[0]) == 64


def knows_it_up(database: Database) -> bool:
    return database.is_up


async def until_back(database: Database) -> list[str]:
    async with asyncio.timeout(30):
        while True:
            try:
                return await database.read(names)
            except DatabaseAway:
                await asyncio.sleep(0.02)


async def test_an_sqlite_file_taken_away_and_brought_back(tmp_path: Path, store_config: StoreConfig) -> None:
    path = tmp_path / "state.db"
    database = Database(f"sqlite:///{path}", store_config)
    await database.start()
    await database.write(partial(put, name="before"))
    os.rename(path, tmp_path / "elsewhere.db")
    with pytest.raises(DatabaseAway):
        await database.write(partial(put, name="lost"))
    assert not database.is_up
    assert not path.exists()  # No new, empty one was made in its place.
    os.rename(tmp_path / "elsewhere.db", path)
    assert await until_back(database) == ["before"]
    assert knows_it_up(database)
    await database.close()


async def test_postgresql_stopped_and_started(cluster: Cluster, store_config: StoreConfig) -> None:
    database = Database(cluster.new_database(), store_config)
    await database.start()
    await database.write(partial(put, name="before"))
    await asyncio.to_thread(cluster.stop)
    try:
        with pytest.raises(DatabaseAway):
            await database.write(partial(put, name="lost"))
        assert not database.is_up
    finally:
        await asyncio.to_thread(cluster.start)
    assert await until_back(database) == ["before"]
    await database.close()


async def test_while_it_is_away_callers_are_told_at_once(store_config: StoreConfig) -> None:
    database = Database("postgresql://nobody@/none?host=/nonexistent", store_config)
    assert not await database.start()
    calls = await asyncio.gather(*(database.read(names) for _ in range(200)), return_exceptions=True)
    assert {type(call) for call in calls} == {DatabaseAway}
    await database.close()


async def test_a_statement_that_takes_too_long_fails_alone(cluster: Cluster) -> None:
    database = Database(cluster.new_database(), StoreConfig(statement_timeout_s=0.2))
    await database.start()
    with pytest.raises(DatabaseAway):
        await database.read(lambda connection: connection.execute(text("SELECT pg_sleep(10)")))
    assert database.is_up
    assert await database.read(names) == []
    await database.close()


async def test_tables_are_made_when_the_database_comes_later(tmp_path: Path, cluster: Cluster) -> None:
    config = StoreConfig(retry_s=0.05)
    address = cluster.new_database()
    await asyncio.to_thread(cluster.stop)
    try:
        database = Database(address, config)
        assert not await database.start()
    finally:
        await asyncio.to_thread(cluster.start)
    assert await until_back(database) == []
    await database.write(lambda connection: connection.execute(update(settings).values(value="x")))
    await database.close()
