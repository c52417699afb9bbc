"""Answers fed by hand at exact times, without a server: what the definitions are tested with."""

from __future__ import annotations

import json
from typing import Any

from tandem.core.clock import ManualClock
from tandem.loadtest.answer import Answer
from tandem.loadtest.record import Record


def sse(body: dict[str, Any] | str) -> bytes:
    return f"data: {body if isinstance(body, str) else json.dumps(body)}\n\n".encode()


def delta(**fields: Any) -> bytes:
    return sse({"choices": [{"index": 0, "delta": fields}]})


def content(text: str = "x") -> bytes:
    return delta(content=text)


def usage(completion_tokens: int, prompt_tokens: int = 10) -> bytes:
    return sse({"choices": [], "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}})


FINISH = sse({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
DONE = sse("[DONE]")


def play(*events: tuple[float, bytes], sent_s: float = 0.0, status: int = 200, broken: str | None = None) -> Record:
    """A record of an answer whose bytes came at these times after sending; it ends with the last of them."""
    clock = ManualClock(sent_s)
    record = Record(sent_s, 10, 100, sent_s=sent_s)
    answer = Answer(record, clock.now)
    if status:
        answer.head(status)
    for at_s, data in events:
        clock.advance(sent_s + at_s - clock.now())
        answer.data(data)
    answer.ended(broken)
    return record


def succeeded(sent_s: float, ttft_s: float, e2el_s: float, tokens: int) -> Record:
    """A stream of single tokens at even distances."""
    gap = (e2el_s - ttft_s) / max(1, tokens - 1)
    chunks = [sent_s + ttft_s + gap * k for k in range(tokens)]
    return Record(
        due_s=sent_s,
        wanted_input_tokens=10,
        max_tokens=tokens,
        sent_s=sent_s,
        first_s=chunks[0],
        first_content_s=chunks[0],
        last_s=chunks[-1],
        end_s=chunks[-1],
        chunks=chunks,
        status="ok",
        prompt_tokens=10,
        completion_tokens=tokens,
        finish_reason="length",
    )


def failed(sent_s: float, after_s: float = 0.0, problem: str = "HTTP 503: full") -> Record:
    return Record(sent_s, 10, 20, sent_s=sent_s, end_s=sent_s + after_s, status="error", problem=problem)
