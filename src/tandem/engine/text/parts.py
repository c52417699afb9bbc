"""What a tokenizer is made of, whichever files it came from: the seam between the two readers and `Tokenizer`."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Tokenizer as NativeTokenizer

from tandem.engine.text.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """`Tokenizer` takes it over and owns it from then on."""

    native: NativeTokenizer
    vocabulary: Vocabulary
    prefix_ids: list[int]
    """Put before a text (BOS), where special tokens are to be added."""
    suffix_ids: list[int]
    """Put behind it (EOS)."""
    special_tokens: dict[str, str]
    """Name → text, for chat templates: `bos_token`, `eos_token`, …"""
    chat_template: str | None
