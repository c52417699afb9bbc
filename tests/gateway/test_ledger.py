"""The ledger: each request once, whatever happens to the database, the process or the disk."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import Connection, func, select

from tandem.config.gateway_store import StoreConfig
from tandem.gateway.ledger import StoredLedger
from tandem.gateway.store.database import Database
from tandem.gateway.store.errors import DatabaseAway
from tandem.gateway.store.ledger_rows import from_us, insert_rows, month_of, spent_micros
from tandem.gateway.store.tables import ledger
from tests.gateway.rows import ledger_row, until
from tests.gateway.store.databases import Cluster


def ids(connection: Connection) -> list[str]:
    return list(connection.execute(select(ledger.c.request_id).order_by(ledger.c.request_id)).scalars())


@pytest.fixture
async def writer(database: Database, tmp_path: Path) -> AsyncIterator[StoredLedger]:
    made = StoredLedger(database, tmp_path / "spool")
    await made.start()
    yield made
    await made.close()


async def test_rows_arrive_in_the_background(writer: StoredLedger, database: Database) -> None:
    for number in range(1200):
        writer.record(ledger_row(f"r{number:04}"))
    await until(lambda: writer.is_caught_up)
    assert len(await database.read(ids)) == 1200
    assert await database.read(partial(spent_micros, month=202612)) == {"k": 1200 * 30}


async def test_a_row_is_kept_as_it_was(writer: StoredLedger, database: Database) -> None:
    time = datetime(2026, 12, 31, 23, 30, 0, 123456, tzinfo=timezone(timedelta(hours=-2)))
    row = ledger_row("r", time=time, is_estimated=True, status="aborted", cost_micros=1 << 40)
    writer.record(row)
    await writer.flush()
    (found,) = await database.read(lambda connection: list(connection.execute(select(ledger))))
    assert from_us(found.time_us) == time
    for name in ("tenant", "prompt_tokens", "cached_tokens", "engine_s", "cost_micros", "is_estimated", "status"):
        assert getattr(found, name) == getattr(row, name)
    # In UTC it was January already.
    assert await database.read(partial(spent_micros, month=202701)) == {"k": 1 << 40}


async def test_a_row_sent_twice_counts_once(database: Database) -> None:
    rows = [ledger_row(name) for name in "abc"]
    assert await database.write(partial(insert_rows, rows=rows)) == 3
    assert await database.write(partial(insert_rows, rows=[*rows, ledger_row("d"), ledger_row("d")])) == 1
    assert await database.read(ids) == ["a", "b", "c", "d"]
    assert await database.read(partial(spent_micros, month=202612)) == {"k": 120}


async def test_sums_are_exact() -> None:
    """Case ld-03: whole micro-units have no drift."""
    assert sum(ledger_row(str(n), cost_micros=62).cost_micros for n in range(100_000)) == 6_200_000
    assert month_of(datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC)) == 202612


async def test_two_gateways_send_the_same_rows_at_once(address: str, database: Database, tmp_path: Path) -> None:
    others = [Database(address, database.config) for _ in range(3)]
    writers = [StoredLedger(each, tmp_path / str(number)) for number, each in enumerate([database, *others])]
    for writer in writers:
        for number in range(200):
            writer.record(ledger_row(f"r{number:03}"))
    await asyncio.gather(*(writer.flush() for writer in writers))
    assert len(await database.read(ids)) == 200
    assert await database.read(partial(spent_micros, month=202612)) == {"k": 6000}
    for writer in writers:
        await writer.close()
    for each in others:
        await each.close()


async def test_the_database_goes_and_comes_back(cluster: Cluster, store_config: StoreConfig, tmp_path: Path) -> None:
    """Nothing is lost, nothing doubled, and recording never waits."""
    database = Database(cluster.new_database(), store_config)
    await database.start()
    writer = StoredLedger(database, tmp_path / "spool")
    await writer.start()
    sent = 0

    async def send(count: int) -> None:
        nonlocal sent
        for _ in range(count):
            writer.record(ledger_row(f"r{sent:05}"))
            sent += 1
            if sent % 50 == 0:
                await asyncio.sleep(0)

    await send(300)
    await asyncio.to_thread(cluster.stop)
    try:
        await send(300)
        await until(lambda: writer.num_waiting == 0)
        assert list((tmp_path / "spool").glob("*.jsonl"))
        await send(300)
    finally:
        await asyncio.to_thread(cluster.start)
    await send(100)
    await until(lambda: writer.is_caught_up)
    assert await database.read(ids) == [f"r{number:05}" for number in range(1000)]
    assert await database.read(partial(spent_micros, month=202612)) == {"k": 30_000}
    assert not list((tmp_path / "spool").glob("*"))
    await writer.close()
    await database.close()


async def test_closing_while_the_database_is_away_leaves_all_on_disk_for_the_next(
    address: str, store_config: StoreConfig, tmp_path: Path
) -> None:
    away = Database("postgresql://nobody@/none?host=/nonexistent", store_config)
    writer = StoredLedger(away, tmp_path / "spool")
    await writer.start()
    for number in range(700):
        writer.record(ledger_row(f"r{number:03}"))
    await writer.close()
    await away.close()
    database = Database(address, store_config)
    await database.start()
    following = StoredLedger(database, tmp_path / "spool")
    await following.start()
    await until(lambda: following.is_caught_up)
    assert len(await database.read(ids)) == 700
    await following.close()
    await database.close()


async def test_a_commit_whose_answer_is_lost_is_sent_again(
    writer: StoredLedger, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, lost = database.write, 0

    async def write(work: Callable[[Connection], object]) -> object:
        nonlocal lost
        result = await real(work)
        if lost < 2:
            lost += 1
            raise DatabaseAway("after the commit")
        return result

    monkeypatch.setattr(database, "write", write)
    for number in range(20):
        writer.record(ledger_row(f"r{number:02}"))
    await until(lambda: lost > 0 and writer.is_caught_up)
    assert len(await database.read(ids)) == 20
    assert await database.read(partial(spent_micros, month=202612)) == {"k": 600}
    assert writer.spending.micros("k") == 600 or writer.spending.month() != 202612


async def test_a_row_that_the_database_would_refuse_costs_only_itself(writer: StoredLedger, database: Database) -> None:
    writer.record(ledger_row("long", model="m" * 1000, replica="\x00r"))
    writer.record(ledger_row("huge", prompt_tokens=1 << 70))
    writer.record(ledger_row("good"))
    await writer.flush()
    assert await database.read(ids) == ["good", "long"]
    assert writer.num_refused == 1


async def test_with_neither_database_nor_disk_memory_is_bounded(
    store_config: StoreConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = Database("postgresql://nobody@/none?host=/nonexistent", StoreConfig(ledger_queue_rows=100, retry_s=0.01))
    writer = StoredLedger(away, tmp_path / "spool")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    real = os.fsync
    monkeypatch.setattr(os, "fsync", full)
    for number in range(150):
        writer.record(ledger_row(f"r{number:03}"))
        await writer.flush()
    assert (writer.num_waiting, writer.num_dropped) == (100, 50)
    monkeypatch.setattr(os, "fsync", real)
    await writer.flush()
    assert writer.num_waiting == 0
    await writer.close()
    await away.close()


async def test_a_killed_process_leaves_what_it_spooled(address: str, database: Database, tmp_path: Path) -> None:
    script = (
        "import asyncio, pathlib, sys\n"
        "from tandem.gateway.ledger import StoredLedger\n"
        "from tandem.gateway.store.database import Database\n"
        "from tests.gateway.rows import ledger_row, until\n"
        "async def main():\n"
        "    away = Database('postgresql://nobody@/none?host=/nonexistent')\n"
        "    writer = StoredLedger(away, pathlib.Path(sys.argv[1]))\n"
        "    for number in range(50):\n"
        "        writer.record(ledger_row(f'r{number:02}'))\n"
        "    await writer.flush()\n"
        "    print('ready', flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    root = Path(__file__).parents[2]
    process = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", script, str(tmp_path / "spool")], stdout=subprocess.PIPE, cwd=root
    )
    assert process.stdout is not None
    assert await asyncio.to_thread(process.stdout.readline) == b"ready\n"
    process.kill()
    process.wait()
    process.stdout.close()
    writer = StoredLedger(database, tmp_path / "spool")
    await writer.start()
    await until(lambda: writer.is_caught_up)
    assert len(await database.read(ids)) == 50
    await writer.close()


async def test_the_newest_spending_counts_before_it_is_written(writer: StoredLedger, database: Database) -> None:
    now = datetime.now(UTC)
    writer.record(ledger_row("a", time=now, cost_micros=70))
    assert writer.spending.micros("k") == 70
    await writer.flush()
    assert writer.spending.micros("k") == 70
    elsewhere = [ledger_row("b", time=now, cost_micros=5)]
    await database.write(partial(insert_rows, rows=elsewhere))
    spent = await database.read(partial(spent_micros, month=month_of(now)))
    writer.spending.refreshed(month_of(now), spent)
    assert writer.spending.micros("k") == 75
    assert (
        await database.read(lambda connection: connection.execute(select(func.count(ledger.c.time_us))).scalar())
    ) == 2
