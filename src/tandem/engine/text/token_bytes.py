"""The exact bytes of every token. Knows the vocabulary and how it is spelled, not how text becomes tokens.

A token is bytes, not text: an emoji is often spread over two tokens, neither of which is a character. So whatever needs
the text of tokens (streaming, stop strings, the `bytes` of logprobs) joins their bytes first and decodes afterwards.
The core process needs this table, and no tokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tandem.engine.loading.base import TextFiles
from tandem.engine.text.folder_vocabulary import folder_vocabulary
from tandem.engine.text.gguf_vocabulary import gguf_vocabulary
from tandem.engine.text.vocabulary import Vocabulary

SPACE_MARK = "▁"
"""How SentencePiece writes a space (U+2581)."""
_BYTE_PIECE = re.compile("<0x([0-9A-F]{2})>")


class TokenBytes:
    """id → bytes. Ids beyond the vocabulary (a padded embedding has some) are no bytes."""

    __slots__ = ("_table", "special_ids", "strips_leading_space")

    def __init__(
        self, table: Sequence[bytes], special_ids: frozenset[int] = frozenset(), strips_leading_space: bool = False
    ) -> None:
        self._table = table
        self.special_ids = special_ids
        """The control tokens: what `skip_special_tokens` leaves out."""
        self.strips_leading_space = strips_leading_space
        """At the start of a text, one leading space is the tokenizer's, not the text's."""

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, token_id: int) -> bytes:
        assert token_id >= 0, f"a token id can't be negative: {token_id}"
        return self._table[token_id] if token_id < len(self._table) else b""

    @property
    def longest(self) -> int:
        """Bytes of the longest token."""
        return max(map(len, self._table), default=1) or 1

    def join(self, token_ids: Iterable[int], skip: frozenset[int] = frozenset()) -> bytes:
        """The bytes of these tokens in a row, without those in `skip`."""
        table, size = self._table, len(self._table)
        return b"".join([table[token_id] for token_id in token_ids if token_id < size and token_id not in skip])


def load_token_bytes(text: TextFiles) -> TokenBytes:
    """Built straight from a model's files: about 0.1 s for 49,152 tokens. Raises `ModelDamaged`, `ModelUnsupported`."""
    return token_bytes(gguf_vocabulary(text) if text.kind == "gguf" else folder_vocabulary(text))


def token_bytes(vocabulary: Vocabulary) -> TokenBytes:
    if vocabulary.spelling == "byte_level":
        table = _byte_level(vocabulary)
    elif vocabulary.spelling == "sentencepiece":
        table = [_sentencepiece(piece) for piece in vocabulary.pieces]
    else:
        table = [_utf8(piece) for piece in vocabulary.pieces]
    return TokenBytes(table, vocabulary.special_ids, vocabulary.strips_leading_space)


def byte_alphabet() -> dict[str, int]:
    """GPT-2's spelling of the 256 bytes as letters: the printable ones are themselves, the rest follow from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + rank): byte for rank, byte in enumerate(others)}


def _byte_level(vocabulary: Vocabulary) -> list[bytes]:
    """Translates all pieces in one go (a letter is a byte, so lengths stay) and cuts the result up again.

    Added tokens are written as they read, not in the alphabet; so is a piece with a letter that isn't in it.
    """
    alphabet = byte_alphabet()
    plain = re.compile(f"[{re.escape(''.join(alphabet))}]*")
    as_read = {
        token_id: piece
        for token_id, piece in enumerate(vocabulary.pieces)
        if token_id in vocabulary.added or not plain.fullmatch(piece)
    }
    spelled = ["" if token_id in as_read else piece for token_id, piece in enumerate(vocabulary.pieces)]
    joined = "".join(spelled).translate({ord(letter): byte for letter, byte in alphabet.items()})
    table = _cut(joined.encode("latin-1"), [len(piece) for piece in spelled])
    for token_id, piece in as_read.items():
        table[token_id] = _utf8(piece)
    return table


def _cut(data: bytes, lengths: Iterable[int]) -> list[bytes]:
    parts, start = [], 0
    for length in lengths:
        parts.append(data[start : start + length])
        start += length
    return parts


def _sentencepiece(piece: str) -> bytes:
    """Added tokens too: Gemma has runs of ▁ among them."""
    if piece.startswith("<0x") and (byte := _BYTE_PIECE.fullmatch(piece)):
        return bytes([int(byte[1], 16)])
    return _utf8(piece.replace(SPACE_MARK, " "))


def _utf8(piece: str) -> bytes:
    """Half a surrogate pair, which only a damaged file has, becomes "?" rather than an error in mid-stream."""
    return piece.encode("utf-8", "replace")
