"""A turn of a conversation → the body of its request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tandem.loadtest.settings import TargetSettings, parse_extra
from tandem.traffic.work import Turn

PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


class Bodies:
    """Made once; knows the model and what goes into every request."""

    def __init__(self, target: TargetSettings, model: str, *, ignore_eos: bool) -> None:
        self.path = PATHS[target.endpoint]
        self._is_chat = target.endpoint == "chat"
        self._ignore_eos = ignore_eos
        self._common: dict[str, Any] = {"model": model, "temperature": target.temperature, "stream": target.stream}
        if target.stream:
            self._common["stream_options"] = {"include_usage": True}
        self._extra = parse_extra(target.extra_body)

    def encode(self, history: Sequence[dict[str, Any]], turn: Turn, extra: dict[str, Any]) -> bytes:
        """`history` is the whole conversation, this turn's messages included."""
        body = dict(self._common)
        if self._is_chat:
            body["messages"] = history
        else:
            body["prompt"] = "\n".join(str(message["content"]) for message in history)
        body["max_tokens"] = turn.max_tokens
        if self._ignore_eos and turn.must_reach_max:
            body["ignore_eos"] = True
        for name, value in {**self._extra, **extra}.items():
            if value is None:
                body.pop(name, None)
            else:
                body[name] = value
        return msgspec.json.encode(body)
