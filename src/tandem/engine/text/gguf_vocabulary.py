"""Reads the vocabulary out of a GGUF's metadata. Knows its keys and token types, not how text is split.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, "Tokenizer".
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any

from tandem.core.errors import ModelDamaged, ModelUnsupported
from tandem.engine.loading.base import TextFiles
from tandem.engine.text.vocabulary import MAX_TOKENS, AddedToken, Spelling, Vocabulary

PREFIX = "tokenizer.ggml."
SPELLINGS: Mapping[str, Spelling] = {"gpt2": "byte_level", "llama": "sentencepiece"}
"""tokenizer.ggml.model → how its tokens are spelled."""

_NAMED_IDS = ("bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id")
"""Control tokens whatever type the file gives them; padding and unknown may be ordinary ones."""


class TokenType(IntEnum):
    """tokenizer.ggml.token_type."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_SPECIAL_TYPES = (TokenType.UNKNOWN, TokenType.CONTROL)
_ADDED_TYPES = (*_SPECIAL_TYPES, TokenType.USER_DEFINED)


class GGUFTokens:
    """The metadata under `tokenizer.ggml.`, checked. Missing token types mean that all tokens are normal."""

    def __init__(self, text: TextFiles) -> None:
        self.path = text.path
        self._values = text.values
        self.model: str = self._checked("model", str, "")
        if self.model not in SPELLINGS:
            raise ModelUnsupported(
                f"{self.path} has a tokenizer of kind {self.model!r}; Tandem reads {', '.join(SPELLINGS)} from a GGUF. "
                "Its original folder, with tokenizer.json, can be served instead."
            )
        self.pieces = _respelled(self.texts("tokens"), self.model)
        if not 0 < len(self.pieces) <= MAX_TOKENS:
            raise ModelDamaged(f"{self.path} lists {len(self.pieces)} tokens.")
        self.types = self.numbers("token_type") or [TokenType.NORMAL] * len(self.pieces)

    def texts(self, key: str) -> list[str]:
        value = self._values.get(PREFIX + key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ModelDamaged(f"{self.path}: {PREFIX}{key} must be a list of texts.")
        return value

    def numbers(self, key: str) -> list[int | float]:
        """One for each token, or none at all."""
        value = self._values.get(PREFIX + key, [])
        numbers = value.tolist() if hasattr(value, "tolist") else value
        if not isinstance(numbers, list) or not all(isinstance(number, int | float) for number in numbers):
            raise ModelDamaged(f"{self.path}: {PREFIX}{key} must be a list of numbers.")
        if numbers and len(numbers) != len(self.pieces):
            raise ModelDamaged(f"{self.path}: {PREFIX}{key} has {len(numbers)} entries for {len(self.pieces)} tokens.")
        return numbers

    def flag(self, key: str, default: bool) -> bool:
        value: bool = self._checked(key, bool, default)
        return value

    def name(self, key: str) -> str | None:
        value: str | None = self._checked(key, str, None)
        return value

    def token_id(self, key: str) -> int | None:
        """The id under this key, if it is one of the vocabulary."""
        value: int | None = self._checked(key, int, None)
        return value if value is not None and 0 <= value < len(self.pieces) else None

    def _checked(self, key: str, kind: type, default: Any) -> Any:
        value = self._values.get(PREFIX + key, default)
        if value is not default and not isinstance(value, kind):
            raise ModelDamaged(f"{self.path}: {PREFIX}{key} is {value!r:.80}; it must be of type {kind.__name__}.")
        return value


def gguf_vocabulary(text: TextFiles) -> Vocabulary:
    """Raises `ModelUnsupported` for kinds of tokenizer that Tandem doesn't have, `ModelDamaged` for wrong metadata."""
    return vocabulary_of(GGUFTokens(text))


def vocabulary_of(tokens: GGUFTokens) -> Vocabulary:
    named = {token_id for key in _NAMED_IDS if (token_id := tokens.token_id(key)) is not None}
    added = {
        token_id: AddedToken(token_id, piece, special=token_id in named or kind in _SPECIAL_TYPES)
        for token_id, (piece, kind) in enumerate(zip(tokens.pieces, tokens.types, strict=True))
        if piece and (kind in _ADDED_TYPES or token_id in named)
    }
    strips = tokens.model == "llama" and tokens.flag("add_space_prefix", True)
    return Vocabulary(tokens.pieces, added, SPELLINGS[tokens.model], strips)


def _respelled(pieces: list[str], model: str) -> list[str]:
    """Files of Gemma write its runs of spaces as spaces, the tokenizer as ▁: their merges are only found as such."""
    if model != "llama":
        return pieces
    return ["▁" * len(piece) if len(piece) > 1 and not piece.strip(" ") else piece for piece in pieces]


def template_of(values: Mapping[str, Any], path: Path) -> str | None:
    """The chat template in the metadata."""
    template = values.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise ModelDamaged(f"{path}: tokenizer.chat_template must be a text.")
    return template
