"""An answer as it comes in: which bytes are tokens, when the first and the last came, and how it ended.

First token means first *content*: a chunk that brings a role, an empty text or usage only is neither a token nor the
first one. A chunk may hold several tokens; how many there were is taken from usage where the endpoint reports it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tandem.core.errors import TandemError
from tandem.loadtest.record import Record
from tandem.protocol.sse import DONE_DATA, SseParser

_SHOWN = 200


class _Text(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct):
    delta: _Text | None = None
    message: _Text | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Times(msgspec.Struct):
    queue_s: float | None = None
    prefill_s: float | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    tandem: _Times | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


class Answer:
    """The listener of one request; fills in its record. `clock` gives the run's time."""

    __slots__ = ("_body", "_clock", "_events", "_is_done", "_is_streamed", "_keeps_text", "_now_s", "_problem",
                 "_status", "last_byte_s", "record")  # fmt: skip

    def __init__(
        self, record: Record, clock: Callable[[], float], *, is_streamed: bool = True, keeps_text: bool = False
    ) -> None:
        self.record = record
        self._clock = clock
        self._is_streamed = is_streamed
        self._keeps_text = keeps_text
        self._status = 0
        self._events = SseParser()
        self._body: list[bytes] = []
        self._problem = ""
        self._is_done = False
        self._now_s = 0.0
        self.last_byte_s = record.sent_s

    def head(self, status: int) -> None:
        self._status = status

    def data(self, data: bytes) -> None:
        self._now_s = self.last_byte_s = self._clock()
        if self._status != 200 or not self._is_streamed:
            self._body.append(data)
            return
        try:
            for event in self._events.feed(data):
                if event.comment is None:
                    self._take(event.data, is_error=event.event == "error")
        except TandemError as error:
            self._problem = error.message

    def ended(self, problem: str | None, *, is_stale: bool = False) -> None:
        self.record.end_s = self._clock()
        self.record.problem = self._verdict(problem)
        self.record.status = "error" if self.record.problem else "ok"

    def _verdict(self, problem: str | None) -> str:
        """What was wrong; "" for nothing."""
        if self._status not in (0, 200):
            return f"HTTP {self._status}: {_error_text(b''.join(self._body))}"
        if self._status == 200 and not self._is_streamed and problem is None:
            self._take_whole(b"".join(self._body))
        if self._problem or problem:
            return self._problem or str(problem)
        record = self.record
        if self._is_streamed and not (self._is_done or record.finish_reason):
            return "the stream ended without [DONE] and without a finish reason"
        if record.output_tokens == 0 and record.finish_reason is None:
            return "the answer has no token"
        return ""

    def _take(self, data: bytes, *, is_error: bool) -> None:
        if data == DONE_DATA:
            self._is_done = True
            return
        try:
            chunk = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._problem = f"an event of the stream is not as OpenAI's: {data[:_SHOWN].decode(errors='replace')!r}"
            return
        if chunk.error is not None or is_error:
            self._problem = f"an error in mid-stream: {_error_text(data)}"
            return
        if chunk.usage is not None:
            self._take_usage(chunk.usage)
        for choice in chunk.choices:
            self._take_choice(choice)

    def _take_choice(self, choice: _Choice) -> None:
        record = self.record
        if choice.finish_reason is not None:
            record.finish_reason = choice.finish_reason
        text, thought = choice.text, None
        if choice.delta is not None:
            delta = choice.delta
            text, thought = delta.content, delta.reasoning_content or delta.reasoning
            if delta.tool_calls:
                text = text or " "
        if not text and not thought:
            return
        if record.first_s is None:
            record.first_s = self._now_s
        if text and record.first_content_s is None:
            record.first_content_s = self._now_s
        record.last_s = self._now_s
        record.chunks.append(self._now_s)
        if self._keeps_text and text:
            record.text += text

    def _take_usage(self, usage: _Usage) -> None:
        record = self.record
        record.prompt_tokens, record.completion_tokens = usage.prompt_tokens, usage.completion_tokens
        if usage.prompt_tokens_details is not None:
            record.cached_tokens = usage.prompt_tokens_details.cached_tokens or 0
        if usage.tandem is not None:
            record.queue_s, record.prefill_s = usage.tandem.queue_s, usage.tandem.prefill_s

    def _take_whole(self, body: bytes) -> None:
        """An answer that was not streamed: it has no first token, only an end."""
        try:
            chunk = _decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._problem = f"the answer is not as OpenAI's: {body[:_SHOWN].decode(errors='replace')!r}"
            return
        if chunk.error is not None or not chunk.choices:
            self._problem = f"an error with status 200: {_error_text(body)}"
            return
        if chunk.usage is not None:
            self._take_usage(chunk.usage)
        choice = chunk.choices[0]
        self.record.finish_reason = choice.finish_reason
        self.record.last_s = self._now_s
        if self._keeps_text:
            self.record.text = (choice.message.content if choice.message else choice.text) or ""


def _error_text(body: bytes) -> str:
    """The message in OpenAI's error object, or the beginning of whatever it is."""
    try:
        error = msgspec.json.decode(body)
        error = error.get("error", error) if isinstance(error, dict) else error
        message = error.get("message", error) if isinstance(error, dict) else error
        return str(message)[:_SHOWN]
    except msgspec.DecodeError:
        return body[:_SHOWN].decode(errors="replace").strip() or "no reason given"
