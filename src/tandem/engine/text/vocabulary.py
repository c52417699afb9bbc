"""What each token id stands for, as the model's files spell it. Knows no text, and not the tokenizers library.

tokenizer.json ─> folder_vocabulary.py ─┐
GGUF metadata ──> gguf_vocabulary.py ───┴─> Vocabulary ─> TokenBytes (both processes), Tokenizer (the front)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tandem.core.errors import ModelDamaged

MAX_TOKENS = 4_000_000
"""No vocabulary is larger; an id beyond it comes from a damaged file, and would only reserve memory."""

Spelling = Literal["byte_level", "sentencepiece", "text"]
"""How a piece spells its bytes: one letter of GPT-2's alphabet for each; as text with ▁ for a space and <0xNN> for a
lone byte; or simply as text."""

_TURN_MARK = re.compile(r"<[|｜].*[|｜]>|<(start|end)_of_(turn|image)>|\[/?INST\]", re.DOTALL)
"""What chat templates set between turns. Some models don't mark all of theirs as special."""


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token that is looked for in the text itself, before any other splitting. Fields as in tokenizer.json."""

    id: int
    content: str
    special: bool = False
    """It steers the model and is no part of what is said; left out of the text by `skip_special_tokens`."""
    lstrip: bool = False
    """It swallows the white space before it."""
    rstrip: bool = False
    """It swallows the white space behind it."""
    single_word: bool = False
    """It counts only where no letter or digit touches it."""
    normalized: bool = False
    """It is looked for in the normalised text."""

    @property
    def is_control(self) -> bool:
        """Whether only the template may say it, and nobody in a message: special tokens, and marks between turns."""
        return self.special or _TURN_MARK.fullmatch(self.content) is not None


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Every token of a model."""

    pieces: Sequence[str]
    """id → the token as it is spelled; "" where an id has no token."""
    added: Mapping[int, AddedToken]
    """id → those of them that are matched in the text. All control tokens are here, and others, such as <think>."""
    spelling: Spelling
    strips_leading_space: bool = False
    """The tokenizer writes a space before a text, so decoding a whole text takes one off."""

    @property
    def special_ids(self) -> frozenset[int]:
        return frozenset(token.id for token in self.added.values() if token.special)

    def id_of(self, text: str | None) -> int | None:
        """The id of the token that is spelled so, if there is one. Searches: not for hot paths."""
        if not text:
            return None
        return next((token_id for token_id, piece in enumerate(self.pieces) if piece == text), None)


def pieces_by_id(tokens: Iterable[tuple[int, str]], path: Path) -> list[str]:
    """A list with "" in the gaps. Raises `ModelDamaged` for ids that can't be."""
    known = dict(tokens)
    if not known:
        raise ModelDamaged(f"the tokenizer in {path} has no tokens.")
    first, last = min(known), max(known)
    if first < 0 or last >= MAX_TOKENS:
        raise ModelDamaged(
            f"the tokenizer in {path} has token ids from {first} to {last}; 0 to {MAX_TOKENS - 1} can be."
        )
    pieces = [""] * (last + 1)
    for token_id, piece in known.items():
        pieces[token_id] = piece
    return pieces
