"""Follows the text of requests with stop strings inside the core, so that not one token is generated past a stop.

The front finds the same stop with the same code when it shows the text; here only *that* it came matters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from tandem.core.request import StopWatch
from tandem.engine.loading.base import TextFiles
from tandem.engine.messages import NewRequest
from tandem.engine.text.text_stream import TextStream
from tandem.engine.text.token_bytes import TokenBytes, load_token_bytes


class TextWatch:
    """Implements `core.request.StopWatch`."""

    __slots__ = ("_stream",)

    def __init__(self, stream: TextStream) -> None:
        self._stream = stream

    def push(self, token_ids: Sequence[int]) -> str | None:
        return self._stream.push(token_ids).stop


def text_watcher(text: TextFiles) -> Callable[[NewRequest], StopWatch | None]:
    """Makes a watch for each answer that has stop strings; others cost nothing.

    The table of token bytes is built when the first such request comes (0.1 s for 49,152 tokens), then kept.
    """

    @cache
    def table() -> TokenBytes:
        return load_token_bytes(text)

    def watch(new: NewRequest) -> StopWatch | None:
        return TextWatch(TextStream.of(table(), new.sampling)) if new.sampling.stop else None

    return watch
