"""Text of a wanted number of tokens, without a tokenizer.

Common English words are nearly always one token each, so words are counted; what an endpoint's own tokenizer makes of
them, and what its chat template adds, is a line through two measured points (`Ratio`).
"""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass
from typing import Final

WORDS: Final = tuple(
    """time year people way day man thing woman life child world school state family student group country problem hand
    part place case week company system program question work government number night point home water room mother area
    money story fact month lot right study book eye job word business issue side kind head house service friend father
    power hour game line end member law car city community name president team minute idea body information back parent
    face others level office door health person art war history party result change morning reason research girl guy
    moment air teacher force education foot boy age policy music market sense nation plan college interest death
    experience effect use class control field development role rate heart drug show leader light voice wife police mind
    price report decision son view relationship town road arm difference value building action season society tax
    director position player record paper space ground form event official matter center couple site project activity
    star table need court oil situation cost industry figure street image phone data picture practice piece land
    product doctor wall news test movie north love support technology step baby computer type attention film tree
    source organization hair look window culture chance brother energy period course summer plant opportunity term
    letter condition choice rule south husband floor campaign material population call economy hospital church risk
    fire future defense security bank west sport board subject officer rest behavior performance fight top goal second
    bed order author blood agency nature color store sound movement page race concern series language response animal
    factor decade article east artist scene stock career treatment approach size dog fund media sign thought list
    individual quality pressure answer resource meeting disease success cup amount ability staff character growth loss
    degree attack region television box training trade deal election feeling standard message analysis benefit sex
    manager glass article ball cancer skill""".split()  # noqa: SIM905
)
"""All nouns, so that no text of them is a sentence that a model would want to end."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """An endpoint's prompt tokens for a text of so many words: `tokens_per_word · words + overhead_tokens`."""

    tokens_per_word: float = 1.0
    overhead_tokens: float = 0.0
    """What the chat template adds to every prompt."""

    def words(self, tokens: int) -> int:
        return max(1, round((tokens - self.overhead_tokens) / self.tokens_per_word))

    def tokens(self, words: int) -> int:
        return max(1, round(self.tokens_per_word * words + self.overhead_tokens))


def fit_ratio(short: tuple[int, int], long: tuple[int, int]) -> Ratio:
    """From two probes, each (words, prompt tokens that the endpoint counted)."""
    slope = (long[1] - short[1]) / (long[0] - short[0])
    if not 0.2 <= slope <= 20:
        return Ratio()
    return Ratio(slope, short[1] - slope * short[0])


class TextMaker:
    """Seeded: the same seed gives the same texts. Two texts of one maker differ from their first words on."""

    def __init__(self, seed: int, ratio: Ratio | None = None) -> None:
        self._seed = seed
        self.ratio = ratio or Ratio()
        self._num_made = 0

    def unique(self, tokens: int) -> str:
        """A text that no other call has begun alike."""
        self._num_made += 1
        return self.named(f"unique {self._num_made}", tokens)

    def named(self, name: str, tokens: int) -> str:
        """The text of that name: the same whenever it is asked for."""
        return " ".join(_draw(f"{self._seed} {name}", self.ratio.words(tokens)))

    def blocks(self, ids: tuple[int, ...], block_tokens: int, tokens: int) -> str:
        """Text of which block i depends on `ids[i]` only: prompts share as much text as their leading ids agree."""
        per_block = max(1, round(block_tokens / self.ratio.tokens_per_word))
        words: list[str] = []
        for block_id in ids:
            words += _block(f"{self._seed} block {block_id}", per_block)
        return " ".join(words[: self.ratio.words(tokens)])


@functools.lru_cache(maxsize=4096)
def _block(seed: str, count: int) -> list[str]:
    """Kept: popular prefixes are asked for again and again, and the load generator has no time to lose."""
    return _draw(seed, count)


def _draw(seed: str, count: int) -> list[str]:
    # A string seeds Random through SHA-512, the same in every process.
    return random.Random(seed).choices(WORDS, k=count)
