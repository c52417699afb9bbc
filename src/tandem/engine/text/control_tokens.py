"""Finds control tokens in text, and takes their power away. Knows their spellings, not what they do.

Vocabularies have up to 6,000 of them (Gemma's unused ones), nearly all beginning with "<". A look-up of the few
lengths at each such place is much faster than a pattern of 6,000 alternatives.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tandem.engine.text.vocabulary import AddedToken

_NEVER = re.compile(r"(?!)")
_BLANK = re.compile(r"\s+")


class ControlToken(NamedTuple):
    """A control token at `text[start:end]`, with the white space it swallows."""

    start: int
    end: int
    token_id: int


class ControlTokens:
    """All control tokens of a vocabulary."""

    def __init__(self, tokens: Iterable[AddedToken]) -> None:
        self._tokens = {token.content: token for token in tokens if token.is_control}
        self._spellings = sorted(self._tokens)
        lengths: dict[str, set[int]] = defaultdict(set)
        for spelling in self._spellings:
            lengths[spelling[0]].add(len(spelling))
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}
        firsts = "".join(map(re.escape, self._lengths))
        self._first = re.compile(f"[{firsts}]") if firsts else _NEVER

    def find_all(self, text: str) -> Iterator[ControlToken]:
        """From left to right, without overlap; of several at one place the longest."""
        end = 0
        for place in self._first.finditer(text):
            token = self._at(text, place.start()) if place.start() >= end else None
            if token is not None:
                start, end = _span(text, place.start(), token, end)
                yield ControlToken(start, end, token.id)

    def defuse(self, text: str, breaker: str) -> str:
        """The text with `breaker` put inside each control token in it, so that none is left.

        Also inside the beginning of one at the end of the text: what is written behind it might complete it.
        """
        if self._first.search(text) is None:
            return text
        parts, start = [], 0
        for place in self._first.finditer(text):
            if self._at(text, place.start()) is not None or self._begins_at(text, place.start()):
                parts += [text[start : place.end()], breaker]
                start = place.end()
        return "".join([*parts, text[start:]]) if parts else text

    def _at(self, text: str, start: int) -> AddedToken | None:
        for length in self._lengths[text[start]]:
            token = self._tokens.get(text[start : start + length])
            if token is not None and _stands_alone(text, start, token):
                return token
        return None

    def _begins_at(self, text: str, start: int) -> bool:
        """Whether the rest of the text is the beginning of a token. In sorted order, its continuations follow it."""
        if len(text) - start >= self._lengths[text[start]][0]:
            return False
        rest = text[start:]
        following = bisect_right(self._spellings, rest)
        return following < len(self._spellings) and self._spellings[following].startswith(rest)


def _stands_alone(text: str, start: int, token: AddedToken) -> bool:
    if not token.single_word:
        return True
    end = start + len(token.content)
    return not (text[max(0, start - 1) : start].isalnum() or text[end : end + 1].isalnum())


def _span(text: str, start: int, token: AddedToken, limit: int) -> tuple[int, int]:
    """Where the token reaches with the white space it swallows, back to `limit` at most."""
    end = start + len(token.content)
    if token.lstrip:
        start = limit + len(text[limit:start].rstrip())
    if token.rstrip and (blank := _BLANK.match(text, end)):
        end = blank.end()
    return start, end
