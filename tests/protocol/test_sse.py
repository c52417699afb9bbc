"""Server-sent events, cut anywhere, read the same."""

from __future__ import annotations

import pytest

from tandem.core.errors import EngineFailed
from tandem.protocol.sse import DONE, DONE_DATA, SseEvent, SseParser, encode_comment, encode_event

STREAMS = {
    "lf": b'data: {"a":1}\n\ndata: {"b":2}\n\ndata: [DONE]\n\n',
    "crlf": b'data: {"a":1}\r\n\r\ndata: {"b":2}\r\n\r\ndata: [DONE]\r\n\r\n',
    "cr": b'data: {"a":1}\r\rdata: {"b":2}\r\rdata: [DONE]\r\r',
    "byte order mark": b'\xef\xbb\xbfdata: {"a":1}\n\ndata: {"b":2}\n\ndata: [DONE]\n\n',
    "no blank after the colon": b'data:{"a":1}\n\nid: 7\ndata:{"b":2}\nretry: 10\n\ndata:[DONE]\n\n',
}


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_cut_anywhere(name: str, size: int) -> None:
    stream, parser = STREAMS[name], SseParser()
    events = [event for i in range(0, len(stream), size) for event in parser.feed(stream[i : i + size])]
    assert [event.data for event in events] == [b'{"a":1}', b'{"b":2}', DONE_DATA]
    assert parser.is_between_events


def test_what_we_write_we_read() -> None:
    stream = encode_event(b"1") + encode_event(b"2", "error") + encode_comment("ping") + DONE
    assert SseParser().feed(stream) == [
        SseEvent(b"1"),
        SseEvent(b"2", "error"),
        SseEvent(b"", comment=b"ping"),
        SseEvent(DONE_DATA),
    ]


def test_several_data_lines_join() -> None:
    assert SseParser().feed(b"data: a\ndata: b\n\n") == [SseEvent(b"a\nb")]


def test_a_broken_stream_is_noticed() -> None:
    parser = SseParser()
    assert parser.feed(b'data: {"a"') == []
    assert not parser.is_between_events


@pytest.mark.parametrize("piece", [b"data: " + b"x" * 50, b"data: xxxxxxxx\n"])
def test_an_endless_event_is_refused(piece: bytes) -> None:
    parser = SseParser(max_event_bytes=100)
    with pytest.raises(EngineFailed, match="larger than 100 bytes"):
        [parser.feed(piece) for _ in range(20)]
