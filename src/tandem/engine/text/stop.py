"""Finds stop strings in text that arrives in pieces, and lets through what can't belong to one. Knows no tokens' bytes.

The text is taken character by character, whatever the pieces: so the answer does not depend on how it was cut into
tokens or pushes. All that is kept is the longest end of the text that is the beginning of a stop string. It grows by at
most one character for each that is read, and every failed look-up shortens it, so a character costs two look-ups on
average: the argument of Knuth, Morris and Pratt (1977), without their table, since 64 strings of 1,024 characters
would make a large one for every request.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable


class StopChecker:
    """For one answer. The first stop string to be complete wins; of several that end together, the longest."""

    __slots__ = ("_first", "_held", "_include_stop", "_min_tokens", "_stop", "_stop_sorted", "matched")

    def __init__(self, stop: Iterable[str], include_stop: bool = False, min_tokens: int = 0) -> None:
        """`include_stop`: the text ends with the stop string, else before it. A string that is complete before
        `min_tokens` tokens doesn't count and is text; one that began before them does."""
        self._stop = tuple(sorted(set(stop), key=len, reverse=True))
        assert "" not in self._stop, "an empty stop string would end every answer"
        self._stop_sorted = sorted(self._stop)
        firsts = "".join(sorted({re.escape(text[0]) for text in self._stop}))
        self._first = re.compile(f"[{firsts}]") if firsts else None
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self._held = ""
        self.matched: str | None = None
        """The stop string that ended the text."""

    def push(self, text: str, num_tokens: int) -> str:
        """What may be shown now. `num_tokens` have been generated so far, those that made this text included.

        After a match all further text is dropped: the answer has ended.
        """
        if self.matched is not None:
            return ""
        if self._first is None or (not self._held and self._first.search(text) is None):
            return text
        return self._read(text, counts=num_tokens >= self._min_tokens)

    def finish(self) -> str:
        """What was held back, when the answer ends without a stop string. A second call gives ""."""
        held, self._held = self._held, ""
        return held

    def _read(self, text: str, counts: bool) -> str:
        """Each character lengthens what is held, until a stop string is complete or some of it is set free."""
        free: list[str] = []
        for character in text:
            self._held += character
            if counts and self._held.endswith(self._stop):
                free.append(self._cut())
                break
            keep = self._longest_beginning(self._held)
            free.append(self._held[: len(self._held) - len(keep)])
            self._held = keep
        return "".join(free)

    def _cut(self) -> str:
        self.matched = next(stop for stop in self._stop if self._held.endswith(stop))
        end = len(self._held) if self._include_stop else len(self._held) - len(self.matched)
        shown, self._held = self._held[:end], ""
        return shown

    def _longest_beginning(self, text: str) -> str:
        """The longest end of `text` that a stop string begins with, and goes on after."""
        while text and not self._is_beginning(text):
            text = text[1:]
        return text

    def _is_beginning(self, text: str) -> bool:
        """In sorted order, whatever begins with a text comes right behind it."""
        following = bisect_right(self._stop_sorted, text)
        return following < len(self._stop_sorted) and self._stop_sorted[following].startswith(text)
