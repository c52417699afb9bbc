"""One batch from its validation to its files, as long as this process holds the lease.

Lines may be sent twice (after a crash, a takeover, a cut), and are seen once: `results.save_result` takes the first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Final, Literal

from tandem.config.gateway_store import BatchesConfig
from tandem.gateway.batches import records
from tandem.gateway.batches.fenced import Fenced
from tandem.gateway.batches.files import Folder
from tandem.gateway.batches.finishing import close_batch, discard, write_files
from tandem.gateway.batches.input import Checked, InputLine, check_input, read_input
from tandem.gateway.batches.lines import LineRequest, result_of
from tandem.gateway.batches.records import ActiveBatch
from tandem.gateway.batches.results import LineResult, done_lines, save_result
from tandem.gateway.batches.sending import Sender
from tandem.gateway.store.errors import StorageFull
from tandem.gateway.store.wall import WallClock
from tandem.protocol.batch import BatchErrorItem, BatchStatus

StopReason = Literal["cancelled", "expired"]
_READ_AHEAD: Final = 64
"""Lines read from the file in one go."""
_DISK_RETRY_S: Final = 10.0
_log = logging.getLogger(__name__)


class _Stopped(Exception):
    """Ends the group of running lines."""


class BatchRun:
    """`run` once; `stop` at any time."""

    def __init__(
        self,
        batch: ActiveBatch,
        store: Fenced,
        folder: Folder,
        config: BatchesConfig,
        sender: Sender,
        wall: WallClock,
        is_draining: Callable[[], bool] = lambda: False,
    ) -> None:
        self.batch = batch
        self.num_open = 0
        """Lines begun and not ended."""
        self._store = store
        self._folder = folder
        self._config = config
        self._sender = sender
        self._wall = wall
        self._is_draining = is_draining
        self._reason: StopReason | None = "cancelled" if batch.status == "cancelling" else None
        self._stopped = asyncio.Event()
        self._line_ended = asyncio.Event()
        self._commits: set[asyncio.Task[bool]] = set()

    def stop(self, reason: StopReason) -> None:
        """No line begins any more, running ones are cut off; what is done stays. A second reason doesn't count."""
        self._reason = self._reason or reason
        self._stopped.set()

    async def run(self) -> None:
        """To its final status. Raises `LeaseLost`, also inside an exception group."""
        try:
            if self.batch.status == "validating" and self._reason is None and not await self._validate():
                return
            if self.batch.status == "in_progress" and self._reason is None:
                await self._run_lines()
            await self._finish()
        finally:
            for commit in self._commits:
                commit.cancel()

    async def _validate(self) -> bool:
        """Whether there is more to do."""
        checked = await asyncio.to_thread(self._check)
        batch_id, now_s = self.batch.id, self._wall.now()
        if checked.errors:
            await self._store.write(partial(records.fail, batch_id=batch_id, errors=checked.errors, now_s=now_s))
            return False
        total, model = checked.num_lines, checked.model
        begun = await self._store.write(
            partial(records.begin, batch_id=batch_id, total=total, model=model, now_s=now_s)
        )  # fmt: skip
        if not begun:
            self._reason = self._reason or "cancelled"
        self.batch = replace(self.batch, status="in_progress", total=total if begun else 0)
        return True

    def _check(self) -> Checked:
        try:
            path = self._folder.path_of(self.batch.input_file_id)
            return check_input(path, self.batch.endpoint, self._config)
        except OSError as error:
            _log.error("the input of %s can't be read: %s", self.batch.id, error)
            message = "The input file can't be read from the gateway's disk; upload it again."
            return Checked(0, [BatchErrorItem(code="input_unreadable", message=message)])

    async def _run_lines(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                watcher = group.create_task(self._watch_for_stop())
                await self._begin_lines(group)
                await self._until(lambda: self.num_open == 0)
                watcher.cancel()
        except* _Stopped:
            pass
        for commit in list(self._commits):
            await commit  # Of lines that were cut off when their result was there already.

    async def _watch_for_stop(self) -> None:
        await self._stopped.wait()
        raise _Stopped

    async def _begin_lines(self, group: asyncio.TaskGroup) -> None:
        done = await self._store.read(partial(done_lines, batch_id=self.batch.id))
        async for line in self._read_lines():
            if line.number not in done:
                await self._wait_for_place()
                self.num_open += 1
                group.create_task(self._run_line(line))

    async def _read_lines(self) -> AsyncIterator[InputLine]:
        lines = read_input(self._folder.path_of(self.batch.input_file_id), self._config)
        while some := await asyncio.to_thread(lambda: list(islice(lines, _READ_AHEAD))):
            for line in some:
                yield line

    async def _wait_for_place(self) -> None:
        """Until a line may begin: few enough are open, its key isn't over its limit, and its result can be kept."""
        while True:
            await self._until(lambda: self.num_open < self._sender.room.size)
            if self._is_draining():
                await self._stopped.wait()  # The process is about to end; nothing begins any more.
            elif (pause_s := self._sender.pause_s(self.batch.key_id)) > 0:
                await asyncio.sleep(pause_s)
            elif not self._store.database.is_up:
                await asyncio.sleep(self._store.retry_s)
            else:
                return

    async def _until(self, is_so: Callable[[], bool]) -> None:
        """Looked at whenever a line ends."""
        while not is_so():
            self._line_ended.clear()
            await self._line_ended.wait()

    async def _run_line(self, line: InputLine) -> None:
        try:
            batch = self.batch
            request = LineRequest(
                batch_id=batch.id, number=line.number, custom_id=line.custom_id, endpoint=batch.endpoint,
                tenant=batch.tenant, key_id=batch.key_id, body=line.body, deadline_unix_s=batch.expires_at,
            )  # fmt: skip
            await self._commit(result_of(request, await self._sender.answer(request)))
        finally:
            self.num_open -= 1
            self._line_ended.set()

    async def _commit(self, result: LineResult) -> None:
        """Goes on although the line is cut off meanwhile: the result is there."""
        save = partial(save_result, batch_id=self.batch.id, result=result)
        commit = asyncio.create_task(self._store.write(save))
        self._commits.add(commit)
        commit.add_done_callback(self._commits.discard)
        await asyncio.shield(commit)

    async def _finish(self) -> None:
        if self._reason is None and self.batch.status == "in_progress":
            finalize = partial(records.begin_finalizing, batch_id=self.batch.id, now_s=self._wall.now())
            if not await self._store.write(finalize):
                self._reason = "cancelled"  # In the last moment.
        # Nobody tells when a disk has room again.
        while not await self._write_files(self._reason or "completed"):  # noqa: ASYNC110
            await asyncio.sleep(_DISK_RETRY_S)

    async def _write_files(self, status: BatchStatus) -> bool:
        """False: the disk doesn't take them now."""
        now_us = self._wall.now_us()
        write = partial(
            write_files, self.batch, status, self._store.database, self._folder, self._config, now_us
        )  # fmt: skip
        try:
            written = await self._store.until_up(lambda: asyncio.to_thread(write))
        except (OSError, StorageFull) as error:
            _log.error("the files of %s can't be written now: %s", self.batch.id, error)
            return False
        close = partial(close_batch, batch=self.batch, status=status, written=written, now_s=now_us / 1e6)
        if not await self._store.write(close):
            await asyncio.to_thread(discard, self._folder, written)
        return True
