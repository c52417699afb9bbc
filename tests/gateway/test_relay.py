"""From the replica's socket to the client's: the same events, wherever the reads are cut, framing and all."""

from __future__ import annotations

import random
from typing import Any

import httptools
import pytest

from tandem.gateway.client_stream import AiohttpStream
from tandem.gateway.relay import StreamRelay
from tandem.gateway.replicas.openai import OpenAIAdapter
from tandem.gateway.stream import StreamScanner
from tandem.gateway.upstream.connection import Connection
from tests.gateway.test_stream import END, STREAM, chunk

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class FakeTransport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None: ...


def framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Reader:
    """The client's parser, ours excepted."""

    def __init__(self, data: bytes) -> None:
        self.body = b""
        self.is_whole = False
        httptools.HttpResponseParser(self).feed_data(HEAD + data + b"0\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.is_whole = True


def relayed(reads: list[bytes], *, is_chunked: bool = True) -> tuple[bytes, StreamRelay]:
    """What the client's transport got, of an answer that came in these reads."""
    here, there = FakeTransport(), FakeTransport()
    connection = Connection(1 << 16, lambda: 0.0, lambda c: None, lambda c: None)
    connection.connection_made(here)  # type: ignore[arg-type]
    answer = connection.begin(b"")
    scanner = StreamScanner(OpenAIAdapter().event_error, drops_usage=True)
    relay = StreamRelay(answer, scanner, lambda: 0.0)
    client: Any = AiohttpStream.__new__(AiohttpStream)
    client._transport, client._buffer_bytes, client.is_chunked = there, 1 << 20, is_chunked
    connection.data_received(HEAD)
    answer.attach(relay)
    for number, read in enumerate(reads):
        connection.data_received(read)
        if number == 0:
            relay.pass_on(client)
    return there.written, relay


EVENTS = [*STREAM[:3], *(chunk(f'piece {n} é \\ "') for n in range(40)), STREAM[3], *END]
EXPECTED = b"".join([*EVENTS[:-2], END[1]])


@pytest.mark.parametrize("seed", range(60))
def test_reads_cut_anywhere_give_the_same_events(seed: int) -> None:
    rng = random.Random(seed)
    grouped, left = [], list(EVENTS)
    while left:  # several events a chunk, as engines that lag do
        size = rng.choice((1, 1, 1, 2, 5))
        grouped.append(framed(b"".join(left[:size])))
        left = left[size:]
    whole = b"".join(grouped) + b"0\r\n\r\n"
    first, reads, at = grouped[0], [grouped[0]], len(grouped[0])
    assert first
    boundaries = [sum(map(len, grouped[:n])) for n in range(len(grouped) + 1)]
    while at < len(whole):
        ahead = [b for b in boundaries if b > at]
        to = rng.choice(ahead[:2]) if ahead and rng.random() < 0.7 else at + rng.randint(1, 80)
        reads.append(whole[at:to])
        at = to
    written, relay = relayed(reads)
    assert Reader(written).body == EXPECTED
    assert relay.scanner.is_done
    assert relay.scanner.usage is not None
    assert relay.scanner.num_events == len(EVENTS) - 2


def test_most_reads_go_as_they_came() -> None:
    reads = [framed(event) for event in EVENTS[1:-3]]
    written, _ = relayed(reads)
    assert written.endswith(b"".join(reads[2:]))


def test_a_client_without_chunks_gets_none() -> None:
    written, _ = relayed([framed(event) for event in EVENTS], is_chunked=False)
    assert written == EXPECTED


@pytest.mark.parametrize("size", [b"0x%x", b"+%x", b" %x", b"%x;a=b", b"000%x"])
def test_odd_sizes_are_not_handed_on(size: bytes) -> None:
    event = chunk("ordinary")
    odd = size % len(event) + b"\r\n" + event + b"\r\n"
    written, relay = relayed([framed(STREAM[1]), framed(chunk("a")), odd])
    assert odd not in written or size == b"000%x"
    assert relay.failure is not None or Reader(written).body.endswith(event)
