"""The sink of a streamed answer: holds what comes until the first content, then passes it on as it comes.

Back-pressure goes end to end: when the client is behind, the replica's socket isn't read, until the client has caught
up. Meanwhile at most one read of the replica's bytes is held besides the client's own buffer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from tandem.gateway.exchange import ClientStream
from tandem.gateway.stream import StreamScanner
from tandem.gateway.upstream.answer import UpstreamAnswer
from tandem.gateway.upstream.failures import ConnectionBroken, UpstreamFailure

_MAX_SIZE_DIGITS: Final = 8
"""Of a chunk's size, with the line end."""


class StreamRelay:
    """`first_content`, then `pass_on`, then `end`: each waits for what its name says."""

    __slots__ = (
        "_answer", "_catching_up", "_client", "_clock", "_held", "_num_events", "_waiter", "behind_since_s", "failure",
        "is_over", "last_content_s", "scanner",
    )  # fmt: skip

    def __init__(self, answer: UpstreamAnswer, scanner: StreamScanner, clock: Callable[[], float]) -> None:
        self.scanner = scanner
        self._answer = answer
        self._clock = clock
        self._client: ClientStream | None = None
        self._held: list[bytes] = []
        self._waiter: asyncio.Future[None] | None = None
        self._catching_up: asyncio.Task[None] | None = None
        self._num_events = 0
        self.failure: UpstreamFailure | None = None
        self.is_over = False
        """Done, failed, or the engine's error event: nothing more will be passed on."""
        self.last_content_s = clock()
        self.behind_since_s: float | None = None
        """Since when the client reads nothing; None while it keeps up."""

    async def first_content(self) -> None:
        """Returns at the first content or at the end, whichever is first."""
        while not self.scanner.has_content and not self.is_over:
            await self._wait()

    def pass_on(self, client: ClientStream) -> None:
        """Commit: what was held goes out, and the rest as it comes."""
        self._client = client
        if client.is_chunked:
            self._answer.offer_framed(self._pass_framed)
        if held := b"".join(self._held):
            self._held.clear()
            self._write(client, held)

    async def end(self) -> None:
        """Returns when the last byte was handed to the client's transport."""
        while not self.is_over:
            await self._wait()
        if self._catching_up is not None:
            await self._catching_up

    def behind_for_s(self, now_s: float) -> float:
        return 0.0 if self.behind_since_s is None else now_s - self.behind_since_s

    def drop_client(self) -> None:
        """It has read nothing for too long. Its handler is cancelled by the lost connection."""
        if self._client is not None:
            self._client.abort()

    def close(self) -> None:
        if self._catching_up is not None:
            self._catching_up.cancel()

    # The answer's side.

    def data(self, data: bytes) -> None:
        if self.is_over:
            return  # after [DONE]; only the end of the body is still of interest
        scanner = self.scanner
        try:
            out = scanner.feed(data)
        except UpstreamFailure as failure:
            self._answer.fail(failure)
            return
        if scanner.num_events != self._num_events:
            self._num_events = scanner.num_events
            self.last_content_s = self._clock()
        client = self._client
        if client is None:
            self._held.append(out)
            if scanner.has_content:
                self._wake()
        elif out:
            self._write(client, out)
        if scanner.is_done or scanner.error is not None:
            self._finish()

    def _pass_framed(self, data: bytes) -> bool:
        """The shortest way, which most reads of a stream take: exactly one HTTP chunk, with nothing in it that must be
        seen, goes to the client as it is; it needs no parsing and no new framing."""
        end = data.find(b"\r\n", 1, _MAX_SIZE_DIGITS)
        client = self._client
        if end < 0 or client is None or self.is_over or not data.endswith(b"}\n\n\r\n"):
            return False
        if not data[:end].isalnum() or data[1] in b"xX" or _hex(data[:end]) != len(data) - end - 4:
            return False
        if not self.scanner.passes(data, end + 2):
            return False
        self._num_events = self.scanner.num_events
        self.last_content_s = self._clock()
        if client.write_framed(data) and self._catching_up is None:
            self._wait_for(client)
        return True

    def ended(self, failure: UpstreamFailure | None) -> None:
        if self.is_over:
            return
        if failure is None and not self.scanner.is_finished:
            failure = ConnectionBroken("the stream ended before the answer did")
        self.failure = failure
        self._finish()

    def _write(self, client: ClientStream, out: bytes) -> None:
        if client.write(out) and self._catching_up is None:
            self._wait_for(client)

    def _wait_for(self, client: ClientStream) -> None:
        self.behind_since_s = self._clock()
        self._answer.pause()
        self._catching_up = asyncio.ensure_future(self._catch_up(client))

    async def _catch_up(self, client: ClientStream) -> None:
        await client.drain()
        self._catching_up = None
        self.behind_since_s = None
        self.last_content_s = self._clock()
        self._answer.resume()

    def _finish(self) -> None:
        self.is_over = True
        self._wake()

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _hex(digits: bytes) -> int:
    try:
        return int(digits, 16)
    except ValueError:
        return -1
