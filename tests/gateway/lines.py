"""A scriptable engine for batches, as the runner sees one, and input files for it. No sockets, no clients."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tandem.gateway.batches.lines import LineAnswer, LineRequest

Script = Callable[[LineRequest], Awaitable[LineAnswer]]


class Engine:
    """An `Execute`. Answers at once unless a script says otherwise; remembers what it was asked."""

    def __init__(self, script: Script | None = None) -> None:
        self.script = script
        self.asked: list[str] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self.headers: Mapping[str, str] = {}

    async def __call__(self, line: LineRequest, headers: Mapping[str, str]) -> LineAnswer:
        self.asked.append(line.custom_id)
        self.headers = headers
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return await self.script(line) if self.script else answer(line)
        finally:
            self.in_flight -= 1


def answer(line: LineRequest, status: int = 200) -> LineAnswer:
    body = {
        "id": f"chatcmpl-{line.custom_id}", "object": "chat.completion", "model": "m", "created": 1,
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": line.custom_id}}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
    }  # fmt: skip
    return LineAnswer(status, json.dumps(body).encode())


def refusal(status: int, code: str | None = None, retry_after_s: float | None = None) -> LineAnswer:
    body = {"error": {"message": "no", "type": "t", "param": None, "code": code}}
    return LineAnswer(status, json.dumps(body).encode(), retry_after_s)


def chat_line(custom_id: str, **changes: Any) -> dict[str, Any]:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body} | changes


def jsonl(*lines: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def chat_file(count: int) -> bytes:
    return jsonl(*(chat_line(f"q{number}") for number in range(1, count + 1)))
