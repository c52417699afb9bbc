"""`GET /tandem/kv-events`: the prefix cache's changes, as server-sent events or, with `?after=N`, as one JSON answer.

Both read from one bounded buffer. Nothing is recorded while nobody reads: the first reader turns recording on, and it
is turned off again when no stream is open and nobody has asked for a minute. A reader that is new, or has fallen so far
behind that the buffer has moved past it, gets a `CacheResync`, which is all there is, and goes on from there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Final

import msgspec
from aiohttp import web

from tandem.core.clock import Clock
from tandem.core.errors import InvalidRequest, Unavailable
from tandem.engine.client import EngineClient
from tandem.engine.front.event_stream import EventStream
from tandem.engine.front.front import FRONT, Front
from tandem.engine.front.responses import json_response
from tandem.protocol import sse
from tandem.protocol.state import CacheResync, KVEvent, KVEventBatch

MAX_HASHES: Final = 65_536
"""In the buffer, over all events: 5 MB. A resync alone may be larger."""
KEPT_ON_S: Final = 60.0
PING_S: Final = 15.0
_RESYNC_TIMEOUT_S: Final = 10.0
"""An answer to a resync comes after the engine's present step."""


class KVEventBuffer:
    """The newest events, for readers at their own positions."""

    def __init__(self, client: EngineClient, clock: Clock, max_hashes: int = MAX_HASHES) -> None:
        self._client = client
        self._clock = clock
        self._max_hashes = max_hashes
        self._events: deque[KVEvent] = deque()
        self._num_hashes = 0
        self._changed = asyncio.Event()
        self._is_on = False
        self._resync_asked_s = float("-inf")
        self._used_s = clock.now()
        self.num_streams = 0

    def read(self, after: int | None) -> list[KVEvent] | None:
        """What came after event number `after`. None: that isn't known any more, and a resync has been asked for."""
        self._used_s = self._clock.now()
        events = list(self._events)
        if after is not None and events and events[0].sequence - 1 <= after <= events[-1].sequence:
            return [event for event in events if event.sequence > after]
        newest = next((i for i in reversed(range(len(events))) if isinstance(events[i], CacheResync)), None)
        if newest is not None:
            return events[newest:]
        self._ask_resync()
        return None

    async def wait(self, timeout_s: float) -> bool:
        """Whether something new came before the time was up."""
        changed = self._changed
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                return await changed.wait()
        return False

    def _ask_resync(self) -> None:
        """Once for all who wait for it."""
        now_s = self._clock.now()
        if not self._is_on or now_s - self._resync_asked_s > _RESYNC_TIMEOUT_S:
            self._is_on, self._resync_asked_s = True, now_s
            self._clear()
            self._client.watch_cache(self._take)

    def _take(self, batch: KVEventBatch) -> None:
        if not self.num_streams and self._clock.now() - self._used_s > KEPT_ON_S:
            self._turn_off()
            return
        for event in batch.events:
            if isinstance(event, CacheResync):
                self._clear()
                self._resync_asked_s = float("-inf")
            self._events.append(event)
            self._num_hashes += len(event.block_hashes)
        while self._num_hashes > self._max_hashes and len(self._events) > 1:
            self._num_hashes -= len(self._events.popleft().block_hashes)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _turn_off(self) -> None:
        self._is_on = False
        self._clear()
        self._client.watch_cache(None)

    def _clear(self) -> None:
        self._events.clear()
        self._num_hashes = 0


KV_EVENTS = web.AppKey("kv_events", KVEventBuffer)


async def kv_events(request: web.Request) -> web.StreamResponse:
    """A stream, unless `after` is given: then what came after that event, `after=0` beginning with all there is."""
    front, buffer = request.app[FRONT], request.app[KV_EVENTS]
    front.ready()
    if "after" in request.query:
        return await _answer(buffer, _number(request.query["after"]))
    with front.reading_body():  # a shutdown doesn't wait for who only listens
        return await _stream(buffer, front, request)


async def _answer(buffer: KVEventBuffer, after: int) -> web.Response:
    position = after or None
    if (events := buffer.read(position)) is None:
        await buffer.wait(_RESYNC_TIMEOUT_S)
        events = buffer.read(position)
    if events is None:
        raise Unavailable("The engine is busy and has not said what its prefix cache holds. Ask again.")
    return json_response(KVEventBatch(events=events))


async def _stream(buffer: KVEventBuffer, front: Front, request: web.Request) -> web.StreamResponse:
    """Ends with the engine, or when the reader leaves: a ping finds out who left without a word."""
    stream, position = EventStream(request, {}), None
    buffer.num_streams += 1
    try:
        await stream.send(sse.encode_comment())
        while front.closed_reason() is None:
            if events := buffer.read(position):
                position = events[-1].sequence
                await stream.send(sse.encode_event(msgspec.json.encode(KVEventBatch(events=events))))
            elif not await buffer.wait(PING_S):
                await stream.send(sse.encode_comment())
        await stream.response.write_eof()
        return stream.response
    finally:
        buffer.num_streams -= 1


def _number(text: str) -> int:
    if not (text.isdigit() and text.isascii() and len(text) <= 18):
        raise InvalidRequest(f"after is {text!r:.60}; it must be the number of an event, or 0.", param="after")
    return int(text)
