"""Text to token ids and back. Knows neither where the files lie nor what a chat is.

Two native tokenizers share one vocabulary and one set of merges. One reads control tokens wherever their text occurs;
the other takes them for ordinary text, which is what a user's words have to be.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from secrets import token_hex

from tokenizers import AddedToken as NativeToken
from tokenizers import Tokenizer as NativeTokenizer

from tandem.engine.loading.base import TextFiles
from tandem.engine.text.control_tokens import ControlTokens
from tandem.engine.text.folder_tokenizer import folder_parts
from tandem.engine.text.gguf_tokenizer import gguf_parts
from tandem.engine.text.parts import TokenizerParts
from tandem.engine.text.token_bytes import token_bytes
from tandem.engine.text.vocabulary import Vocabulary


class Tokenizer:
    """A model's tokenizer. Safe to use from several threads at once; long texts are encoded without holding the GIL."""

    def __init__(self, parts: TokenizerParts) -> None:
        vocabulary = parts.vocabulary
        self.token_bytes = token_bytes(vocabulary)
        self.vocab_size = len(vocabulary.pieces)
        """One more than the highest token id. The model's embedding may have more rows."""
        self.special_ids = vocabulary.special_ids
        """What `skip_special_tokens` leaves out."""
        self.special_tokens = parts.special_tokens
        """Name → text, for chat templates: `bos_token`, `eos_token`, …"""
        self.chat_template = parts.chat_template
        """The model's own, or None."""
        self.bos_token_id = vocabulary.id_of(self.special_tokens.get("bos_token"))
        self.eos_token_id = vocabulary.id_of(self.special_tokens.get("eos_token"))
        """The tokenizer's own. A model may end at others too: see `ModelSpec.eos_token_ids`."""
        self._unk_token_id = vocabulary.id_of(self.special_tokens.get("unk_token"))
        self._added = list(vocabulary.added.values())
        self._prefix_ids = parts.prefix_ids
        self._suffix_ids = parts.suffix_ids
        self._native = parts.native
        self._mark = f"\ufdd0{token_hex(8)}\ufdd0"
        self._plain = _plain_twin(parts.native, vocabulary, self._mark)

    @cached_property
    def control_tokens(self) -> ControlTokens:
        """Those that no message may say."""
        return ControlTokens(self._added)

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
        """The ids of a text; with BOS and EOS around it, where the model wants them, if `add_special_tokens`.

        `parse_special` False: control tokens spelled out in the text stay text, and none of their ids is returned.
        """
        ids = _encode(self._native, text) if parse_special else self.encode_plain(text)
        return [*self._prefix_ids, *ids, *self._suffix_ids] if add_special_tokens else ids

    def encode_plain(self, text: str, *, follows_token: bool = False) -> list[int]:
        """The ids of a text that says no control token. `follows_token`: it stands behind one, not at the start.

        Where it stands matters to tokenizers that write a space before the first word only.
        """
        if not text:
            return []
        ids = _encode(self._plain, self._mark + text)[1:] if follows_token else _encode(self._plain, text)
        if self._control_ids.isdisjoint(ids):
            return ids
        # A Unigram model can choose the token's own piece, or a merge lead to it. Cut it up and encode the parts.
        parts = self.control_tokens.defuse(text, self._mark).split(self._mark)
        return [token_id for part in parts for token_id in _encode(self._plain, part)]

    @cached_property
    def _control_ids(self) -> frozenset[int]:
        """Without the unknown token, which stands for ordinary characters."""
        return frozenset(token.id for token in self._added if token.is_control and token.id != self._unk_token_id)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of a whole sequence. Bytes that aren't UTF-8 become U+FFFD, as in `IncrementalDetokenizer`."""
        data = self.token_bytes.join(ids, self.special_ids if skip_special_tokens else frozenset())
        if self.token_bytes.strips_leading_space:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", "replace")

    def token_text(self, token_id: int) -> str:
        """One token by itself, as a person would read it; parts of characters are U+FFFD."""
        return self.token_bytes[token_id].decode("utf-8", "replace")


def load_tokenizer(text: TextFiles) -> Tokenizer:
    """Raises `ModelUnsupported` for a kind of tokenizer Tandem doesn't have, `ModelDamaged` for files it can't read."""
    return Tokenizer(gguf_parts(text) if text.kind == "gguf" else folder_parts(text))


def _encode(native: NativeTokenizer, text: str) -> list[int]:
    """Through the batch call, for that one lets other threads run."""
    try:
        batch = native.encode_batch_fast([text], add_special_tokens=False)
    except (TypeError, UnicodeEncodeError):  # half a surrogate pair, from a JSON escape: no character, and no UTF-8
        batch = native.encode_batch_fast([text.encode("utf-8", "replace").decode()], add_special_tokens=False)
    ids: list[int] = batch[0].ids
    return ids


def _plain_twin(native: NativeTokenizer, vocabulary: Vocabulary, mark: str) -> NativeTokenizer:
    """The same tokenizer, deaf to control tokens: milliseconds, for the vocabulary itself is shared, not copied.

    `mark` is an added token of the twin alone, to be put before a text that isn't the beginning. Nobody can guess it.
    """
    twin = NativeTokenizer(native.model)
    if native.normalizer is not None:
        twin.normalizer = native.normalizer
    if native.pre_tokenizer is not None:
        twin.pre_tokenizer = native.pre_tokenizer
    added = [vocabulary.added[token_id] for token_id in sorted(vocabulary.added)]
    twin.add_tokens(
        [
            NativeToken(
                token.content,
                special=token.is_control,
                lstrip=token.lstrip,
                rstrip=token.rstrip,
                single_word=token.single_word,
                normalized=token.normalized,
            )
            for token in added
        ]
    )
    twin.add_tokens([NativeToken(mark, special=False, normalized=False)])
    twin.encode_special_tokens = True
    return twin
