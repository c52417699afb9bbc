"""Server-sent events: how a stream's pieces are framed, and an incremental reader for the other end.

Follows the WHATWG description: lines end in LF, CR or CRLF, a blank line ends an event, `:` begins a comment.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tandem.core.errors import EngineFailed

DONE: Final = b"data: [DONE]\n\n"
"""How OpenAI's streams end."""
DONE_DATA: Final = b"[DONE]"
MAX_EVENT_BYTES: Final = 16 << 20
"""A reader gives up beyond this: whatever sends it is not a stream of tokens."""
HEADERS: Final = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would otherwise collect the stream into lumps
}
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class SseEvent(NamedTuple):
    """`data` joined by newlines; `event` is "" where none was named. A comment has no data."""

    data: bytes
    event: str = ""
    comment: bytes | None = None


def encode_event(data: bytes, event: str = "") -> bytes:
    """One event. `data` is JSON from our encoder, so it holds no newline."""
    assert b"\n" not in data, "JSON on the wire has no newlines"
    assert "\n" not in event, event
    return b"event: %b\ndata: %b\n\n" % (event.encode(), data) if event else b"data: %b\n\n" % data


def encode_comment(text: str = "") -> bytes:
    """A ping: keeps proxies from closing a quiet stream, and clients ignore it."""
    return b": %b\n\n" % text.encode().replace(b"\n", b" ")


class SseParser:
    """Feed it bytes as they come; it returns the events that are complete. Holds at most one unfinished event."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._tail = b""
        self._is_first_line = True
        self._after_cr = False
        self._data: list[bytes] = []
        self._event = ""
        self._size_bytes = 0

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Raises `EngineFailed` when one event grows beyond the limit."""
        events = [event for line in self._lines(chunk) if (event := self._take(line)) is not None]
        if self._size_bytes + len(self._tail) > self._max_event_bytes:
            raise EngineFailed(f"A server-sent event is larger than {self._max_event_bytes} bytes.")
        return events

    @property
    def is_between_events(self) -> bool:
        """False when the stream broke in the middle of an event."""
        return not self._tail and not self._data

    def _lines(self, chunk: bytes) -> list[bytes]:
        """Complete lines without their ends. A CR that ends a chunk may be half of a CRLF: its LF is skipped later."""
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        if b"\r" in chunk:
            self._after_cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if b"\n" not in chunk:
            self._tail += chunk
            return []
        *lines, tail = chunk.split(b"\n")
        lines[0] = self._tail + lines[0]
        self._tail = tail
        return lines

    def _take(self, line: bytes) -> SseEvent | None:
        if self._is_first_line:
            line, self._is_first_line = line.removeprefix(_BYTE_ORDER_MARK), False
        if not line:
            return self._finish()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if not name:
            return SseEvent(b"", comment=value)
        if name == b"data":
            self._data.append(value)
            self._size_bytes += len(value)
        elif name == b"event":
            self._event = value.decode("utf-8", "replace")
        return None

    def _finish(self) -> SseEvent | None:
        data, event = self._data, self._event
        self._data, self._event, self._size_bytes = [], "", 0
        return SseEvent(b"\n".join(data), event) if data else None
