"""The scripted OpenAI server of the load tester's tests, in a thread of its own, for commands in other processes."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType

from tests.loadtest.fake_server import FakeServer, Script


class FakeEndpoint:
    """`with FakeEndpoint(script) as endpoint: endpoint.url`"""

    def __init__(self, script: Script) -> None:
        self.server = FakeServer(script)
        self._is_up = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def url(self) -> str:
        return self.server.url

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self.server.__aenter__())
        self._is_up.set()
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    def __enter__(self) -> FakeEndpoint:
        self._thread.start()
        self._is_up.wait(10)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
