"""The front's end of an engine in a process of its own: starts it, talks to it, notices its death.

Implements `client.EngineClient`. Everything here runs in the front's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable

import msgspec

from tandem.config.engine import EngineConfig
from tandem.core import errors
from tandem.core.errors import EngineFailed, TandemError, Unavailable
from tandem.engine.channel import FrameBuffer, frame
from tandem.engine.messages import (
    Abort,
    CacheChanged,
    Drain,
    EngineStats,
    Failed,
    NewRequest,
    Output,
    Ready,
    StepReport,
    ToCore,
    WatchCache,
    from_core_decoder,
    to_core_encoder,
)
from tandem.protocol.state import KVEventBatch


class _Protocol(asyncio.Protocol):
    """Hands frames, and the end of the stream, to the client."""

    def __init__(self, client: CoreClient) -> None:
        self._client = client
        self._buffer = FrameBuffer()

    def data_received(self, data: bytes) -> None:
        for payload in self._buffer.feed(data):
            self._client._receive(payload)

    def connection_lost(self, exc: Exception | None) -> None:
        self._client._lost()


class CoreClient:
    """One core process. `start` returns at once; `wait_ready` returns when the model is loaded."""

    def __init__(self) -> None:
        self.info: Ready | None = None
        self._stats = EngineStats(time_s=time.monotonic())
        self._failure: str | None = None
        self._failure_kind = "EngineFailed"
        self._queues: dict[str, asyncio.Queue[Output | None]] = {}
        self._ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self._gone = asyncio.Event()
        self._draining = False
        self._step_listener: Callable[[EngineStats], None] | None = None
        self._cache_listener: Callable[[KVEventBatch], None] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._transport: asyncio.Transport | None = None

    # Life ------------------------------------------------------------------------------------------------------------

    async def start(self, config: EngineConfig) -> None:
        """Start the process and send it its configuration."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            # Starting a process takes about a millisecond, once, and before there is anything to serve.
            self._process = subprocess.Popen(  # noqa: ASYNC220
                [sys.executable, "-m", "tandem.engine.core_process", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                # Threads that spin while they wait starve whoever shares their cores: two engines on two cores were six
                # times slower. The variable is read when torch's thread library is loaded, hence here.
                env={"OMP_WAIT_POLICY": "passive"} | os.environ,
                stdin=subprocess.DEVNULL,
            )
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_connection(lambda: _Protocol(self), sock=ours)
        self._transport.write(frame(msgspec.msgpack.encode(config)))

    async def wait_ready(self) -> Ready:
        """The loaded engine's description. Raises the error that kept it from loading."""
        return await asyncio.shield(self._ready)

    async def wait_gone(self) -> None:
        """Returns when the core process has ended its side, however."""
        await self._gone.wait()

    async def drain(self, timeout_s: float) -> None:
        """Take nothing new, let what runs finish, for at most so long, then end the process."""
        self._draining = True
        if self.is_alive:
            self._send(Drain())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), timeout_s)
        self.kill()

    def kill(self) -> None:
        if self._transport:
            self._transport.close()
        if self._process and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def is_alive(self) -> bool:
        return self._process is not None and not self._gone.is_set()

    @property
    def failure(self) -> str | None:
        return self._failure

    @property
    def stats(self) -> EngineStats:
        return self._stats

    def watch_steps(self, listener: Callable[[EngineStats], None]) -> None:
        """Call `listener` with every report from now on."""
        self._step_listener = listener

    def watch_cache(self, listener: Callable[[KVEventBatch], None] | None) -> None:
        """See `client.EngineClient.watch_cache`."""
        self._cache_listener = listener
        if self.is_alive and self.info is not None:
            self._send(WatchCache(listener is not None))

    def heartbeat_age_s(self) -> float:
        return time.monotonic() - self._stats.time_s

    # Requests --------------------------------------------------------------------------------------------------------

    async def generate(self, request: NewRequest) -> AsyncGenerator[Output, None]:
        """See `client.EngineClient.generate`."""
        if self._draining or self.info is None:
            raise Unavailable("The engine is shutting down." if self._draining else "The model is still being loaded.")
        if not self.is_alive:
            raise self._death()
        queue: asyncio.Queue[Output | None] = asyncio.Queue()
        self._queues[request.request_id] = queue
        num_unfinished = request.sampling.n
        try:
            self._send(request)
            while num_unfinished:
                output = await queue.get()
                if output is None:
                    raise self._death()
                num_unfinished -= output.finish_reason is not None
                yield output
        finally:
            del self._queues[request.request_id]
            if num_unfinished and self.is_alive:
                self._send(Abort([request.request_id]))

    def _send(self, message: ToCore) -> None:
        assert self._transport is not None
        self._transport.write(frame(to_core_encoder.encode(message)))

    def _receive(self, payload: bytes) -> None:
        message = from_core_decoder.decode(payload)
        if isinstance(message, StepReport):
            self._stats = message.stats
            if self._step_listener:
                self._step_listener(message.stats)
            for output in message.outputs:
                # A request that was aborted just now may still have outputs on the way.
                if queue := self._queues.get(output.request_id):
                    queue.put_nowait(output)
        elif isinstance(message, CacheChanged):
            if self._cache_listener:
                self._cache_listener(message.batch)
        elif isinstance(message, Ready):
            self.info = message
            # Loading may have taken longer than a heartbeat may be old; this is a sign of life too.
            self._stats.time_s = time.monotonic()
            self._ready.set_result(message)
        elif isinstance(message, Failed):
            self._failure, self._failure_kind = message.message, message.kind

    def _lost(self) -> None:
        """The core is gone: tell everyone who waits for it."""
        self._gone.set()
        if self._failure is None and not self._draining:
            self._failure = "The engine process died."
        for queue in self._queues.values():
            queue.put_nowait(None)
        if not self._ready.done():
            self._ready.set_exception(self._load_error())
            self._ready.exception()  # Marked as seen: nobody may be waiting.

    def _death(self) -> TandemError:
        return EngineFailed(f"{self._failure or 'The engine process ended.'} Send the request again.")

    def _load_error(self) -> TandemError:
        kind = getattr(errors, self._failure_kind, EngineFailed)
        error: TandemError = kind(self._failure or "The engine process ended while it was loading.")
        return error
