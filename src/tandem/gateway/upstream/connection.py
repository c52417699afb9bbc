"""One connection to a replica: writes a request, parses what comes back, one exchange at a time.

Owned by the client's pool while idle, by its exchange while busy. It goes back to the pool by itself when an answer is
whole and the replica keeps the connection; in every other case it is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import cast

import httptools

from tandem.gateway.upstream.answer import UpstreamAnswer
from tandem.gateway.upstream.failures import (
    AnswerTooLarge,
    ConnectionBroken,
    Malformed,
    StaleConnection,
    UpstreamFailure,
)


class Connection(asyncio.Protocol):
    """`on_idle` and `on_lost` are the pool's."""

    # Slots in all that a chunk passes: with a thousand streams, what counts is how much memory each touches.
    __slots__ = (
        "_answer",
        "_clock",
        "_has_answer_begun",
        "_has_chunk_ended",
        "_header_bytes",
        "_headers",
        "_is_between_chunks",
        "_is_in_head",
        "_is_paused",
        "_is_used",
        "_keeps_alive",
        "_max_header_bytes",
        "_on_idle",
        "_on_lost",
        "_parser",
        "_take_framed",
        "_transport",
        "idle_since_s",
    )  # fmt: skip

    def __init__(
        self,
        max_header_bytes: int,
        clock: Callable[[], float],
        on_idle: Callable[[Connection], None],
        on_lost: Callable[[Connection], None],
    ) -> None:
        self._max_header_bytes = max_header_bytes
        self._clock = clock
        self._on_idle = on_idle
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answer: UpstreamAnswer | None = None
        self._headers: dict[str, str] = {}
        self._header_bytes = 0
        self._is_in_head = True
        self._is_used = False
        self._is_paused = False
        self._has_answer_begun = False
        self._keeps_alive = False
        self._take_framed: Callable[[bytes], bool] | None = None
        self._has_chunk_ended = False
        self._is_between_chunks = False
        self.idle_since_s = 0.0

    @property
    def is_usable(self) -> bool:
        return self._answer is None and self._transport is not None and not self._transport.is_closing()

    def begin(self, request: bytes) -> UpstreamAnswer:
        """Writes a whole request. The answer is told of everything that happens from here."""
        assert self._answer is None, "one exchange at a time"
        assert self._transport is not None, "connected before it is used"
        self._answer = answer = UpstreamAnswer(self, self._clock)
        self._headers, self._header_bytes, self._is_in_head = {}, 0, True
        self._has_answer_begun = self._is_between_chunks = False
        self._take_framed = None
        self._transport.write(request)
        return answer

    def offer_framed(self, take: Callable[[bytes], bool]) -> None:
        """From now on a read that begins between two chunks is first offered to `take`, as it came, framing and all. If
        it says True, it has taken the read, which was whole chunks then, and nobody parses it."""
        self._take_framed = take

    def pause_reading(self) -> None:
        if self._transport is not None and not self._is_paused and not self._transport.is_closing():
            self._is_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and self._is_paused and not self._transport.is_closing():
            self._is_paused = False
            self._transport.resume_reading()

    def abort(self) -> None:
        """The exchange is of no more interest. The socket closes now: the engine must notice within this moment."""
        self._answer = None
        if self._transport is not None:
            self._transport.abort()

    def break_off(self, failure: UpstreamFailure) -> None:
        """The exchange ends with `failure`, and the connection with it."""
        answer = self._answer
        self.abort()
        if answer is not None:
            answer._got_end(failure)

    # asyncio's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if answer is None:
            # Bytes nobody asked for: whatever comes next on this connection could be taken for another's answer.
            self.abort()
            return
        if self._is_between_chunks and self._take_framed is not None and self._take_framed(data):
            return
        self._has_answer_begun = True
        if self._is_in_head:
            self._header_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except UpstreamFailure as failure:
            self.break_off(failure)
        except httptools.HttpParserError as error:
            cause = error.__context__
            self.break_off(cause if isinstance(cause, UpstreamFailure) else Malformed(f"not an HTTP answer: {error}"))
        # If a part of the next chunk's size had been parsed already, the read wouldn't end in a line end, or the chunk
        # would have begun.
        self._is_between_chunks = self._has_chunk_ended and data.endswith(b"\r\n")
        if self._is_in_head and self._answer is not None and self._header_bytes > self._max_header_bytes:
            self.break_off(AnswerTooLarge(f"the answer's header is larger than {self._max_header_bytes} bytes"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._on_lost(self)
        answer, self._answer = self._answer, None
        if answer is None:
            return
        if exc is None and self._ends_by_closing():
            answer._got_end(None)
        elif self._is_used and not self._has_answer_begun:
            answer._got_end(StaleConnection("a kept connection was closed"))
        elif not self._has_answer_begun:
            answer._got_end(ConnectionBroken("the connection was closed before any answer"))
        else:
            answer._got_end(ConnectionBroken("the connection was closed in the middle of the answer"))

    def _ends_by_closing(self) -> bool:
        """Neither a length nor chunks: the end of the connection is the end of the body."""
        return (
            not self._is_in_head
            and "content-length" not in self._headers
            and "chunked" not in self._headers.get("transfer-encoding", "")
        )

    # httptools' side: called within `feed_data`.

    def on_message_begin(self) -> None:
        if self._answer is None:
            self.abort()  # a second answer to one request: see data_received

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_in_head:  # trailers are dropped
            self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # 100 and 103 announce; the answer follows
            self._headers = {}
            return
        self._is_in_head = False
        self._keeps_alive = self._parser.should_keep_alive()
        if self._answer is not None:
            self._answer._got_head(status, self._headers)

    def on_chunk_header(self) -> None:
        self._has_chunk_ended = False

    def on_chunk_complete(self) -> None:
        self._has_chunk_ended = True

    def on_body(self, body: bytes) -> None:
        if self._answer is not None:
            self._answer._got_data(body)

    def on_message_complete(self) -> None:
        if self._is_in_head:
            return  # of an announcement
        answer, self._answer = self._answer, None
        self._is_in_head = self._is_used = True
        self._has_chunk_ended = False
        self._take_framed = None
        if answer is not None:
            self._settle()
            answer._got_end(None)

    def _settle(self) -> None:
        if not self._keeps_alive:
            if self._transport is not None:
                self._transport.close()
            return
        with contextlib.suppress(RuntimeError):
            self.resume_reading()
        self._on_idle(self)
