"""Turns tokens into text while they arrive: never half a character, never a step back. Knows no stop strings.

UTF-8 says by itself where a character is complete, so all that has to be kept between two tokens is the beginning of
one: three bytes at most. Nothing is ever decoded twice.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Iterable

from tandem.engine.text.token_bytes import TokenBytes


class IncrementalDetokenizer:
    """What all `push`es and one `finish` return is, joined, what `Tokenizer.decode` makes of the same tokens."""

    __slots__ = ("_skip_ids", "_strip_next", "_tail", "_token_bytes")

    def __init__(
        self, token_bytes: TokenBytes, skip_special_ids: frozenset[int] = frozenset(), *, at_start: bool = True
    ) -> None:
        """`skip_special_ids` are left out of the text. `at_start` False: the text goes on from an earlier one, so
        that a leading space belongs to it."""
        self._token_bytes = token_bytes
        self._skip_ids = skip_special_ids
        self._strip_next = at_start and token_bytes.strips_leading_space
        self._tail = b""

    def push(self, token_ids: Iterable[int]) -> str:
        """The characters that these tokens completed. Invalid bytes become U+FFFD as soon as they are known to be."""
        data = self._tail + self._token_bytes.join(token_ids, self._skip_ids)
        if self._strip_next and data:
            data = data.removeprefix(b" ")
            self._strip_next = False
        text, num_read = utf_8_decode(data, "replace", False)
        self._tail = data[num_read:]
        return text

    def finish(self) -> str:
        """The incomplete character at the end, as U+FFFD, once; "" if there is none."""
        text, _ = utf_8_decode(self._tail, "replace", True)
        self._tail = b""
        return text
