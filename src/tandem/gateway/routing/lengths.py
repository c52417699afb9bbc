"""How long answers get, learnt by key and model: an output nobody knows yet is most of what a request will take.

The mean, smoothed in logarithms so that one huge answer doesn't count for ten; and bounded in keys, the least recently
used forgotten.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Final

MAX_ENTRIES: Final = 10_000
_SMOOTHING: Final = 0.1
_UNKNOWN_TOKENS: Final = 200.0
"""A chat's usual answer, before anything is known."""


class OutputLengths:
    """(key, model) → expected output tokens of one answer; a key not seen yet gets the model's."""

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self._max_entries = max_entries
        self._logs: OrderedDict[tuple[str, str], float] = OrderedDict()

    def expected(self, key_id: str, model: str, max_output_tokens: int | None = None) -> int:
        """At least 1, at most the request's own limit."""
        log = self._logs.get((key_id, model), self._logs.get(("", model), math.log(_UNKNOWN_TOKENS)))
        tokens = max(1, round(math.exp(log)))
        return tokens if max_output_tokens is None else min(tokens, max(1, max_output_tokens))

    def observe(self, key_id: str, model: str, output_tokens: int) -> None:
        """Of one answer that ended by itself or at its limit; not of one that was left or broken."""
        for name in ((key_id, model), ("", model)):
            log = math.log(max(1, output_tokens))
            before = self._logs.get(name, log)
            self._logs[name] = before + _SMOOTHING * (log - before)
            self._logs.move_to_end(name)
        while len(self._logs) > self._max_entries:
            self._logs.popitem(last=False)
