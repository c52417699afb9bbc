"""Batches when things break: a killed process, a database that goes, a disk that is full, a clock that jumps."""

from __future__ import annotations

import asyncio
import errno
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tandem.config.gateway_store import BatchesConfig, StoreConfig
from tandem.gateway.batches import finishing, run
from tandem.gateway.batches.lines import LineAnswer, LineRequest
from tests.gateway.lines import Engine, answer, chat_file
from tests.gateway.rows import until
from tests.gateway.served import Served, serving
from tests.gateway.store.databases import Cluster

ROOT = Path(__file__).parents[3]


@contextmanager
def gateway_process(address: str, config: StoreConfig, log: Path, how_many: int) -> Iterator[subprocess.Popen[bytes]]:
    module = "tests.gateway.batches.gateway_process"
    arguments = [sys.executable, "-m", module, address, config.data_dir, str(log), str(how_many)]
    process = subprocess.Popen(arguments, cwd=ROOT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def begun(log: Path) -> list[str]:
    return log.read_text().split() if log.exists() else []


async def completed(served: Served, batch_id: str) -> int:
    counts = (await served.openai.batches.retrieve(batch_id)).request_counts
    return counts.completed if counts else 0


async def test_killed_in_the_middle_and_resumed_elsewhere(
    address: str, store_config: StoreConfig, tmp_path: Path
) -> None:
    """SIGKILL with some lines done and some running: none is lost, and to the client's eyes none ran twice."""
    log, engine = tmp_path / "begun", Engine()
    async with serving(address, store_config) as served:  # Routes only; it runs no batches.
        batch = await served.batch(chat_file(60))
        with gateway_process(address, store_config, log, 15) as process:
            await until(lambda: len(begun(log)) > 15)
            async with asyncio.timeout(30):
                while await completed(served, batch.id) < 15:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            process.send_signal(signal.SIGKILL)
        assert await completed(served, batch.id) == 15
    async with serving(address, store_config, engine) as served:
        done = await served.finished(batch)
        assert done.status == "completed"
        assert done.request_counts is not None
        assert (done.request_counts.completed, done.request_counts.failed) == (60, 0)
        lines = await served.lines(done.output_file_id)
        assert [line["custom_id"] for line in lines] == [f"q{number}" for number in range(1, 61)]
        assert done.usage is not None
        assert done.usage.input_tokens == 60 * 7
    # Sent again were only those that were running when the process was killed.
    assert len(engine.asked) == 45
    assert max(Counter([*begun(log), *engine.asked]).values()) == 2


async def test_the_database_goes_in_the_middle_and_comes_back(cluster: Cluster, store_config: StoreConfig) -> None:
    """Results that come meanwhile are kept and written later: nothing runs twice."""
    passes = asyncio.Semaphore(0)

    async def script(line: LineRequest) -> LineAnswer:
        await passes.acquire()
        return answer(line)

    engine = Engine(script)
    async with serving(cluster.new_database(), store_config, engine) as served:
        batch = await served.batch(chat_file(30))
        await until(lambda: len(engine.asked) >= 8)
        for _ in range(3):
            passes.release()
        async with asyncio.timeout(30):
            while await completed(served, batch.id) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await asyncio.to_thread(cluster.stop)
        try:
            await until(lambda: not served.store.database.is_up)
            num_asked = len(engine.asked)
            for _ in range(5):
                passes.release()
            await until(lambda: passes.locked())
        finally:
            await asyncio.to_thread(cluster.start)
        for _ in range(22):
            passes.release()
        done = await served.finished(batch)
        assert done.status == "completed"
        assert len(await served.lines(done.output_file_id)) == 30
        assert len(engine.asked) == 30
        assert num_asked <= 30


async def test_a_restart_while_files_are_being_written(
    address: str, store_config: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends between the files and the transaction that names them."""
    reached = asyncio.Event()
    loop = asyncio.get_running_loop()
    real = finishing.close_batch

    def stuck(*_: Any, **__: Any) -> bool:
        loop.call_soon_threadsafe(reached.set)
        raise RuntimeError("the process ends here")

    monkeypatch.setattr(run, "close_batch", stuck)
    async with serving(address, store_config, Engine()) as served:
        batch = await served.batch(chat_file(5))
        await reached.wait()
        assert (await served.openai.batches.retrieve(batch.id)).status == "finalizing"
    monkeypatch.setattr(run, "close_batch", real)
    engine = Engine()
    async with serving(address, store_config, engine) as served:
        done = await served.finished(batch)
        assert done.status == "completed"
        assert len(await served.lines(done.output_file_id)) == 5
        assert engine.asked == []


async def test_a_disk_that_is_full_at_the_end_holds_the_batch_until_there_is_room(
    address: str, store_config: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = asyncio.Event()
    loop = asyncio.get_running_loop()
    real = finishing.write_files

    def full(*_: Any, **__: Any) -> Any:
        loop.call_soon_threadsafe(failed.set)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(run, "_DISK_RETRY_S", 0.02)
    monkeypatch.setattr(run, "write_files", full)
    engine = Engine()
    async with serving(address, store_config, engine) as served:
        batch = await served.batch(chat_file(5))
        await failed.wait()
        assert (await served.openai.batches.retrieve(batch.id)).status == "finalizing"
        monkeypatch.setattr(run, "write_files", real)
        done = await served.finished(batch)
        assert (done.status, len(engine.asked)) == ("completed", 5)


async def test_an_input_that_is_gone_from_the_disk_fails_the_batch_in_words(
    address: str, store_config: StoreConfig
) -> None:
    async with serving(address, store_config, Engine()) as served:
        file_id = await served.upload(chat_file(1))
        (Path(store_config.data_dir) / "files" / file_id).unlink()
        batch = await served.openai.batches.create(
            input_file_id=file_id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        failed = await served.finished(batch)
        assert failed.errors is not None
        assert failed.errors.data is not None
        assert (failed.status, failed.errors.data[0].code) == ("failed", "input_unreadable")


async def test_a_clock_that_jumps_expires_nothing(
    address: str, store_config: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = asyncio.Semaphore(0)

    async def script(line: LineRequest) -> LineAnswer:
        await passes.acquire()
        return answer(line)

    async with serving(address, store_config, Engine(script)) as served:
        batch = await served.batch(chat_file(4))
        now_s = time.time()
        for jump_s in (40 * 86_400.0, -40 * 86_400.0):
            monkeypatch.setattr(served.store.wall, "_read", lambda jump_s=jump_s: now_s + jump_s)
            passes.release()
            served.store.runner.notify()  # type: ignore[union-attr]
        for _ in range(4):
            passes.release()
        done = await served.finished(batch)
        assert done.status == "completed"
        assert abs((done.completed_at or 0) - now_s) < 30


@asynccontextmanager
async def draining(served: Served) -> AsyncIterator[asyncio.Task[None]]:
    assert served.store.runner is not None
    task = asyncio.create_task(served.store.runner.close(drain_s=20.0))
    yield task
    await task


async def test_a_graceful_stop_lets_running_lines_end_and_begins_none(address: str, store_config: StoreConfig) -> None:
    passes = asyncio.Semaphore(0)

    async def script(line: LineRequest) -> LineAnswer:
        await passes.acquire()
        return answer(line)

    engine = Engine(script)
    config = BatchesConfig(max_concurrency=3, poll_s=0.05)
    async with serving(address, store_config, engine, config) as served:
        batch = await served.batch(chat_file(20))
        await until(lambda: engine.in_flight == 3)
        async with draining(served):
            for _ in range(20):
                passes.release()
        assert (engine.asked, await completed(served, batch.id)) == (["q1", "q2", "q3"], 3)
        assert not served.store.runner.lease.is_held  # type: ignore[union-attr]
    engine.script = None
    async with serving(address, store_config, engine, config) as served:
        assert len(await served.lines((await served.finished(batch)).output_file_id)) == 20
    assert len(engine.asked) == 20
