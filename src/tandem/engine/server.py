"""One engine's server process: starts the front, watches the core, and ends well.

starting ──ready──> serving ──SIGTERM, SIGINT──> draining ──idle or time is up──> exit 0
    └──────────────────┴── the core dies ──> failing (a short grace) ──> exit 1
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

import uvloop

from tandem.config.engine import EngineConfig
from tandem.config.server import ServerConfig
from tandem.engine.client import EngineClient
from tandem.engine.front.app import create_app
from tandem.engine.front.front import FRONT, Front
from tandem.engine.front.serving import serve
from tandem.engine.front.text_service import TextService

Connect = Callable[[], Awaitable[EngineClient]]
"""Starts the core; called on the event loop. Returns before the model is loaded, so that `/ready` can say so."""
_WATCH_S: Final = 0.1
FAILURE_GRACE_S: Final = 2.0
"""Time for running requests to be told, and for a health check to see 503, before the process ends."""
_CORE_EXIT_S: Final = 5.0
"""Time for the core to end once nothing runs."""
_CLOSING_S: Final = 2.0
_LAST_WORD_S: Final = 1.0
"""Time for requests that were cut off to say so."""
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_log = logging.getLogger(__name__)


def run_server(connect: Connect, text: TextService, config: ServerConfig, engine: EngineConfig) -> int:
    """Serve until told to end or until the core dies. The exit code: 0 after a signal, 1 after a failure.

    Raises `ConfigError` when it can't listen, and what `connect` raises.
    """

    async def main() -> int:
        return await serve_engine(await connect(), text, config, engine)

    return uvloop.run(main())


async def serve_engine(
    client: EngineClient,
    text: TextService,
    config: ServerConfig,
    engine: EngineConfig,
    *,
    on_listening: Callable[[str], None] | None = None,
    failure_grace_s: float = FAILURE_GRACE_S,
) -> int:
    """`run_server` inside a running loop. `on_listening` is told the address once connections are taken."""
    app = create_app(client, text, config, engine)
    with _stop_signals() as stop:
        serving = await serve(app, config)
        _log.info("listening on %s", serving.address)
        if on_listening is not None:
            on_listening(serving.address)
        try:
            return await _run(app[FRONT], stop, config.shutdown_timeout_s, failure_grace_s)
        finally:
            await serving.close()


async def _run(front: Front, stop: asyncio.Event, shutdown_timeout_s: float, failure_grace_s: float) -> int:
    watching = asyncio.create_task(_watch_core(front.client))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({watching, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            await _drain(front, stop, watching, shutdown_timeout_s)
            return 0
        if front.client.info is None:  # it never loaded, so there are no requests to tell
            _log.error("the engine could not start: %s", front.client.failure)
        else:
            _log.error("the engine has died: %s", front.client.failure)
            await asyncio.sleep(failure_grace_s)
        return 1
    finally:
        watching.cancel()
        stopping.cancel()


async def _watch_core(client: EngineClient) -> None:
    """Returns when the core is dead. The client's contract has no event for that; looking is cheap."""
    while client.is_alive:  # noqa: ASYNC110
        await asyncio.sleep(_WATCH_S)


async def _drain(front: Front, stop: asyncio.Event, watching: asyncio.Task[None], timeout_s: float) -> None:
    """Take nothing new, let open requests end, then end the core. A second signal or the core's death cuts it short."""
    front.is_draining = True
    stop.clear()
    _log.info("shutting down: open requests have %g s to end", timeout_s)
    # What follows the wait takes up to two seconds, and all of it is to end within the time given.
    timeout_s = max(0.0, timeout_s - _CLOSING_S)
    waits = {asyncio.create_task(front.wait_idle()), asyncio.create_task(stop.wait()), watching}
    await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    is_idle = front.num_open == 0
    if front.client.info is None:
        await front.client.drain(0.0)  # still loading: there is nothing to finish
        return
    if not is_idle:
        _log.warning("%d requests are cut off", front.num_open)
    await front.client.drain(_CORE_EXIT_S if is_idle else 0.0)
    await _settle(front, _LAST_WORD_S)


async def _settle(front: Front, timeout_s: float) -> None:
    """Let what is left of open requests say its last word."""
    with suppress(TimeoutError):
        await asyncio.wait_for(front.wait_idle(), timeout_s)


@contextmanager
def _stop_signals() -> Iterator[asyncio.Event]:
    """An event that SIGTERM and SIGINT set, for as long as the block runs."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in _SIGNALS:
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
