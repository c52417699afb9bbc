"""Frames over a socket: four bytes of length, then that many bytes of msgpack. The core's end; blocking, one thread."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator

HEADER_BYTES = 4
_READ_BYTES = 1 << 20


def frame(payload: bytes) -> bytes:
    """A payload as it goes over the wire."""
    return len(payload).to_bytes(HEADER_BYTES, "big") + payload


class FrameBuffer:
    """Cuts a byte stream into payloads."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The payloads that `data` completes."""
        self._bytes += data
        at = 0
        while len(self._bytes) - at >= HEADER_BYTES:
            end = at + HEADER_BYTES + int.from_bytes(self._bytes[at : at + HEADER_BYTES], "big")
            if len(self._bytes) < end:
                break
            yield bytes(self._bytes[at + HEADER_BYTES : end])
            at = end
        del self._bytes[:at]


class Channel:
    """The core's end of the socket pair. Raises `EOFError` when the front is gone."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._buffer = FrameBuffer()

    def send(self, payload: bytes) -> None:
        try:
            self._socket.sendall(frame(payload))
        except OSError as error:
            raise EOFError("the front is gone") from error

    def receive(self, timeout_s: float) -> list[bytes]:
        """All payloads that are there, waiting at most `timeout_s` for the first."""
        readable, _, _ = select.select([self._socket], [], [], timeout_s)
        if not readable:
            return []
        try:
            data = self._socket.recv(_READ_BYTES)
        except OSError as error:
            raise EOFError("the front is gone") from error
        if not data:
            raise EOFError("the front is gone")
        return list(self._buffer.feed(data))
