"""One exchange seen from above: an answer that is coming in, and who is told of its bytes.

Bytes are handed to a sink the moment they are parsed. Before there is a sink they are kept, up to a bound, beyond which
the replica is made to wait. `close` is cancel: it ends the connection, which is what every engine takes as an abort.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from tandem.gateway.upstream.failures import AnswerTooLarge, UpstreamFailure

if TYPE_CHECKING:
    from tandem.gateway.upstream.connection import Connection

_MAX_KEPT_BYTES: Final = 256 << 10


class BodySink(Protocol):
    """Who takes a body as it comes. Called from the event loop, never concurrently."""

    def data(self, data: bytes) -> None: ...

    def ended(self, failure: UpstreamFailure | None) -> None:
        """Once, last. None: the body is whole."""
        ...


class UpstreamAnswer:
    """Made when the request has been written. `head` waits for status and headers; then `read` or `attach`."""

    __slots__ = ("_clock", "_connection", "_head", "_is_whole_asked", "_kept", "_kept_bytes", "_sink", "failure",
                 "headers", "is_complete", "last_byte_s", "status")  # fmt: skip

    def __init__(self, connection: Connection, clock: Callable[[], float]) -> None:
        self._connection: Connection | None = connection
        self._clock = clock
        self._head: asyncio.Future[None] | None = None
        self._sink: BodySink | None = None
        self._kept: list[bytes] = []
        self._kept_bytes = 0
        self._is_whole_asked = False
        self.status = 0
        """0 until the headers have come."""
        self.headers: dict[str, str] = {}
        """Names in lower case; of a repeated header, the last."""
        self.is_complete = False
        self.failure: UpstreamFailure | None = None
        self.last_byte_s = clock()
        """While there is no sink; a sink keeps its own time."""

    async def head(self) -> None:
        """Returns when status and headers are known. Raises `UpstreamFailure`; cancelling it cancels the exchange."""
        if self.status == 0 and self.failure is None:
            await self._wait()
        if self.status == 0 and self.failure is not None:
            raise self.failure

    async def read(self, max_bytes: int) -> bytes:
        """The whole body. Raises `UpstreamFailure`, `AnswerTooLarge` before more than `max_bytes` are held."""
        self._is_whole_asked = True
        self.resume()
        while not self.is_complete and self.failure is None:
            if self._kept_bytes > max_bytes:
                self.fail(AnswerTooLarge(f"the answer is larger than {max_bytes} bytes"))
                break
            await self._wait()
        if self.failure is not None:
            raise self.failure
        if self._kept_bytes > max_bytes:
            raise AnswerTooLarge(f"the answer is larger than {max_bytes} bytes")
        return self._kept[0] if len(self._kept) == 1 else b"".join(self._kept)

    def attach(self, sink: BodySink) -> None:
        """From now on the sink is told; first of what was kept, and of the end if it has come."""
        self._sink = sink
        kept, self._kept, self._kept_bytes = self._kept, [], 0
        for data in kept:
            sink.data(data)
        if self.is_complete or self.failure is not None:
            sink.ended(self.failure)
        else:
            self.resume()

    def offer_framed(self, take: Callable[[bytes], bool]) -> None:
        """The sink would rather have whole reads with HTTP's framing: see `Connection.offer_framed`."""
        if self._connection is not None:
            self._connection.offer_framed(take)

    def pause(self) -> None:
        """Stop reading from the replica; TCP makes it wait."""
        if self._connection is not None:
            self._connection.pause_reading()

    def resume(self) -> None:
        if self._connection is not None:
            self._connection.resume_reading()

    def close(self) -> None:
        """Cancel: the connection ends at once unless the answer was whole. Nobody is told. May be called twice."""
        self._sink = None
        self._kept.clear()
        if self._connection is not None:
            self._connection.abort()

    def fail(self, failure: UpstreamFailure) -> None:
        """Ends the exchange for a reason that only the caller can see, such as silence."""
        if self._connection is not None:
            self._connection.break_off(failure)

    # What the connection tells.

    def _got_head(self, status: int, headers: dict[str, str]) -> None:
        self.status, self.headers = status, headers
        self.last_byte_s = self._clock()
        self._wake()

    def _got_data(self, data: bytes) -> None:
        if self._sink is not None:
            self._sink.data(data)
            return
        self.last_byte_s = self._clock()
        self._kept.append(data)
        self._kept_bytes += len(data)
        if self._is_whole_asked:
            self._wake()
        elif self._kept_bytes > _MAX_KEPT_BYTES:
            self.pause()

    def _got_end(self, failure: UpstreamFailure | None) -> None:
        if self.is_complete or self.failure is not None:
            return
        self._connection = None
        self.failure = failure
        self.is_complete = failure is None
        if self._sink is not None:
            self._sink.ended(failure)
        self._wake()

    async def _wait(self) -> None:
        self._head = asyncio.get_running_loop().create_future()
        try:
            await self._head
        except asyncio.CancelledError:
            self.close()
            raise

    def _wake(self) -> None:
        if self._head is not None and not self._head.done():
            self._head.set_result(None)
