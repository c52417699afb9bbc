"""One answer's tokens to the text a client may see. The front shows it; the core asks it when to stop.

Both processes run the same code on the same tokens, so they agree on the end without a word between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tandem.core.sampling_params import SamplingParams
from tandem.engine.text.detokenizer import IncrementalDetokenizer
from tandem.engine.text.stop import StopChecker
from tandem.engine.text.token_bytes import TokenBytes


class TextDelta(NamedTuple):
    """What some tokens brought."""

    text: str
    """To be shown now. What might become a stop string is held back, and so is half a character."""
    stop: str | None
    """The stop string that one of these tokens completed."""
    num_tokens_used: int
    """How many of the tokens belong to the answer: up to the one that completed the stop string, that one included."""


class TextStream:
    """Detokeniser and stop strings of one answer."""

    __slots__ = ("_checker", "_detokenizer", "_has_stop", "_num_tokens")

    def __init__(
        self,
        token_bytes: TokenBytes,
        *,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        min_tokens: int = 0,
        skip_special_tokens: bool = True,
        at_start: bool = False,
    ) -> None:
        """An answer follows a prompt, so it is not `at_start`: its leading space, if it has one, is shown."""
        skip = token_bytes.special_ids if skip_special_tokens else frozenset[int]()
        self._detokenizer = IncrementalDetokenizer(token_bytes, skip, at_start=at_start)
        self._checker = StopChecker(stop, include_stop, min_tokens)
        self._has_stop = bool(stop)
        self._num_tokens = 0

    @classmethod
    def of(cls, token_bytes: TokenBytes, sampling: SamplingParams) -> TextStream:
        """As a request's parameters want it."""
        return cls(
            token_bytes,
            stop=sampling.stop,
            include_stop=sampling.include_stop_str_in_output,
            min_tokens=sampling.min_tokens,
            skip_special_tokens=sampling.skip_special_tokens,
        )

    def push(self, token_ids: Sequence[int]) -> TextDelta:
        """Tokens after the one that completes a stop string are not used; nothing follows it."""
        if not self._has_stop:
            return TextDelta(self._detokenizer.push(token_ids), None, len(token_ids))
        shown: list[str] = []
        for num_used, token_id in enumerate(token_ids, start=1):
            self._num_tokens += 1
            shown.append(self._checker.push(self._detokenizer.push((token_id,)), self._num_tokens))
            if self._checker.matched is not None:
                return TextDelta("".join(shown), self._checker.matched, num_used)
        return TextDelta("".join(shown), None, len(token_ids))

    def finish(self) -> str:
        """What is left when the answer ends for another reason: text held back, and U+FFFD for half a character.

        "" after a stop string, and at every call but the first.
        """
        tail = self._detokenizer.finish()
        return "" if self._checker.matched is not None else self._checker.finish() + tail
