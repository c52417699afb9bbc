"""What the gateway sees in a stream of server-sent events, and what it changes. Bytes in, bytes out; no sockets.

The one big idea: after the first content, a read that holds whole events and none of a few tell-tale words is passed on
as the very bytes that came. A JSON string can't hold an unescaped quote, so `"error"` with its quotes can only be a key
or a whole value: rare enough to parse the event then. Only whole events are passed on, so that what follows a broken
stream (an error event) always begins on a line of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from tandem.gateway.replicas.base import UpstreamError
from tandem.gateway.reported import read_usage
from tandem.gateway.upstream.failures import AnswerTooLarge
from tandem.protocol import sse
from tandem.protocol.usage import Usage

_FINISH: Final = b'"finish_reason"'


class _Delta(msgspec.Struct):
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: Any = None
    refusal: Any = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: Any = None
    finish_reason: Any = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: msgspec.Raw = msgspec.Raw(b"")
    model: str | None = None


class _Named(msgspec.Struct):
    model: str | None = None


_chunk_decoder = msgspec.json.Decoder(_Chunk)
_named_decoder = msgspec.json.Decoder(_Named)
_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


class StreamScanner:
    """Feed it reads; it returns what goes to the client. State is public: the relay reads it after each feed."""

    __slots__ = (
        "_after_cr", "_drops_usage", "_event_error", "_last", "_max_event_bytes", "_model", "_model_name", "_tail",
        "error", "has_content", "is_done", "num_events", "usage",
    )  # fmt: skip

    def __init__(
        self,
        event_error: Callable[[bytes], UpstreamError | None],
        *,
        model: str | None = None,
        drops_usage: bool = False,
        max_event_bytes: int = sse.MAX_EVENT_BYTES,
    ) -> None:
        """`model`: the alias every event must name, None where the replica's own name is the alias.
        `drops_usage`: the client didn't ask for the usage chunk, so it doesn't get one."""
        self._event_error = event_error
        self._model = None if model is None else msgspec.json.encode(model)
        self._model_name = model
        self._drops_usage = drops_usage
        self._max_event_bytes = max_event_bytes
        self._tail = b""
        self._after_cr = False
        self._last = b""
        self.has_content = False
        """A token, a piece of a tool call, or the reason of an end: what a client waits for."""
        self.num_events = 0
        """With choices: about as many as tokens."""
        self.usage: Usage | None = None
        self.error: UpstreamError | None = None
        """The engine said so in the stream. That event isn't passed on."""
        self.is_done = False
        """[DONE] came."""

    def feed(self, data: bytes) -> bytes:
        """Raises `AnswerTooLarge` when one event grows beyond the limit."""
        if (
            self.has_content
            and not self._tail
            and self._model is None
            and data.startswith(b"data: {")
            and data.endswith(b"}\n\n")
            and b'"error"' not in data
            and b'"usage":{' not in data
            and b'"usage": {' not in data
            and b"\ndata: [DONE]" not in data
            and b"\r" not in data
        ):
            self.num_events += data.count(b"\n\n")
            self._last = data
            return data
        return self._feed_events(data)

    def passes(self, framed: bytes, start: int) -> bool:
        """Whether one HTTP chunk, whose data begins at `start`, may go out as it is. It is counted if so."""
        if (
            self.has_content
            and not self._tail
            and self._model is None
            and framed.startswith(b"data: {", start)
            and b'"error"' not in framed
            and b'"usage":{' not in framed
            and b'"usage": {' not in framed
            and b"\ndata: [DONE]" not in framed
            and framed.find(b"\r", start) == len(framed) - 2
        ):
            self.num_events += framed.count(b"\n\n")
            self._last = framed
            return True
        return False

    @property
    def is_finished(self) -> bool:
        """The answer came to its end, as far as the stream tells: [DONE], or a last event with a finish_reason."""
        if self.is_done:
            return True
        after = self._last[self._last.rfind(_FINISH) + len(_FINISH) :] if _FINISH in self._last else b""
        return after.lstrip(b": ").startswith(b'"')

    def _feed_events(self, data: bytes) -> bytes:
        data = self._tail + self._with_line_feeds(data)
        end = data.rfind(b"\n\n") + 2
        if end == 1:
            self._tail = data
            self._check_size()
            return b""
        self._tail = data[end:]
        self._check_size()
        passed = []
        for event in data[: end - 2].split(b"\n\n"):
            if self.error is not None or self.is_done:
                break  # nothing after the end means anything
            if (out := self._take(event.lstrip(b"\n"))) is not None:
                passed.append(out)
        return b"".join(passed)

    def _check_size(self) -> None:
        if len(self._tail) > self._max_event_bytes:
            raise AnswerTooLarge(f"an event is larger than {self._max_event_bytes} bytes")

    def _with_line_feeds(self, data: bytes) -> bytes:
        """CRLF and CR are line ends too. A CR at the very end may be half of a CRLF: its LF is skipped later."""
        if self._after_cr:
            data = data.removeprefix(b"\n")
            self._after_cr = False
        if b"\r" in data:
            self._after_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return data

    def _take(self, event: bytes) -> bytes | None:
        """One event without the blank line behind it; what goes out instead, with it."""
        data = _data_of(event)
        if data is None:
            return event + b"\n\n" if self.has_content and event else None  # a ping; before content nobody needs it
        if data == sse.DONE_DATA:
            self.is_done = True
            return event + b"\n\n"
        if (b'"error"' in data or event.startswith(b"event: error")) and self._is_error(data):
            return None
        return self._take_chunk(event, data)

    def _is_error(self, data: bytes) -> bool:
        self.error = self._event_error(data)
        return self.error is not None

    def _take_chunk(self, event: bytes, data: bytes) -> bytes | None:
        try:
            chunk = _chunk_decoder.decode(data)
        except msgspec.DecodeError:
            return self._take_strange(event, data)
        usage = read_usage(chunk.usage)
        if usage is not None:
            self.usage = usage
        if chunk.choices:
            self._last = data
            self.num_events += 1
            self.has_content = self.has_content or any(map(_is_content, chunk.choices))
        elif usage is not None and self._drops_usage:
            return None
        if self._model is not None and chunk.model is not None and chunk.model != self._model_name:
            return _renamed(data, chunk.model, self._model)
        return event + b"\n\n"

    def _take_strange(self, event: bytes, data: bytes) -> bytes | None:
        """Not a chunk as we know it. JSON may be an engine's extension and passes; what isn't JSON is no answer."""
        try:
            named = _named_decoder.decode(data)
        except msgspec.ValidationError:
            named = _Named()
        except msgspec.DecodeError:
            self.error = UpstreamError(
                502, "The engine sent an event that is not JSON.", "server_error", "bad_answer", is_retryable=True
            )
            return None
        self.has_content = True
        self.num_events += 1
        if self._model is not None and named.model is not None and named.model != self._model_name:
            return _renamed(data, named.model, self._model)
        return event + b"\n\n"


def _data_of(event: bytes) -> bytes | None:
    """The event's data, or None for a comment."""
    if event.startswith(b"data:") and b"\n" not in event:
        return event[5:].removeprefix(b" ")
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


def _is_content(choice: _Choice) -> bool:
    delta = choice.delta
    if delta is not None and (
        delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls or delta.refusal
    ):
        return True
    return bool(choice.text) or choice.finish_reason is not None


def _renamed(data: bytes, name: str, model: bytes) -> bytes:
    """The chunk under the client's name for the model. Engines write it compactly or with a space; else re-encode."""
    given = msgspec.json.encode(name)
    for form in (b'"model":', b'"model": '):
        if data.count(form + given) == 1:
            return b"data: %b\n\n" % data.replace(form + given, b'"model":' + model)
    fields = _fields_decoder.decode(data)
    fields["model"] = msgspec.Raw(model)
    return b"data: %b\n\n" % msgspec.json.encode(fields)
