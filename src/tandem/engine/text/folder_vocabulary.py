"""Reads the vocabulary out of tokenizer.json. Knows the file's decoders, none of its rules for splitting text.

Format: https://huggingface.co/docs/tokenizers (what `Tokenizer.save` writes). Only the parts that name tokens are
decoded; merges, the bulk of the file, are skipped over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from tandem.core.errors import ModelDamaged, ModelUnsupported
from tandem.engine.loading.base import TextFiles
from tandem.engine.text.vocabulary import AddedToken, Spelling, Vocabulary, pieces_by_id

Decoder = Mapping[str, Any]


class _Model(msgspec.Struct):
    vocab: dict[str, int] | list[tuple[str, float]]
    """piece → id; or, for Unigram, pieces in the order of their ids."""


class _TokenizerJson(msgspec.Struct):
    model: _Model
    added_tokens: list[AddedToken] = []
    decoder: dict[str, Any] | None = None


def folder_vocabulary(text: TextFiles) -> Vocabulary:
    """The vocabulary of a folder in Hugging Face's layout. Raises `ModelDamaged`, `ModelUnsupported`."""
    return parse_vocabulary(read_tokenizer_json(text.path), text)


def read_tokenizer_json(folder: Path) -> bytes:
    path = folder / "tokenizer.json"
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise ModelUnsupported(
            f"{folder} has no tokenizer.json, the one form of tokenizer that Tandem reads from a folder. "
            "transformers writes it: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)."
        ) from error
    except OSError as error:
        raise ModelDamaged(f"{path} can't be read: {error.strerror or error}.") from error


def parse_vocabulary(data: bytes, text: TextFiles) -> Vocabulary:
    """The same from the bytes of tokenizer.json; tokenizer_config.json may say of more tokens that they are special."""
    path = text.path / "tokenizer.json"
    try:
        content = msgspec.json.decode(data, type=_TokenizerJson)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ModelDamaged(f"{path} can't be read as a tokenizer: {error}.") from error
    pieces = pieces_by_id(_tokens(content), path)
    special = _named_special(text.values)
    added = {token.id: _marked(token, special) for token in content.added_tokens}
    spelling = _spelling(content.decoder)
    if spelling == "text":
        pieces = _decoded_pieces(pieces, added, content.decoder)
    return Vocabulary(pieces, added, spelling, _strips_leading_space(content.decoder))


def _tokens(content: _TokenizerJson) -> Iterator[tuple[int, str]]:
    vocab = content.model.vocab
    if isinstance(vocab, dict):
        yield from ((token_id, piece) for piece, token_id in vocab.items())
    else:
        yield from ((token_id, piece) for token_id, (piece, _) in enumerate(vocab))
    yield from ((token.id, token.content) for token in content.added_tokens)


def token_text(value: Any) -> str | None:
    """A token in tokenizer_config.json is a text, or an object with the text as its `content`."""
    text = value.get("content") if isinstance(value, Mapping) else value
    return text if isinstance(text, str) else None


def _named_special(config: Mapping[str, Any]) -> frozenset[str]:
    """`eos_token` and the like are special even where tokenizer.json, edited by hand, doesn't say so."""
    named = [token_text(value) for key, value in config.items() if key.endswith("_token")]
    decoder = config.get("added_tokens_decoder")
    listed = decoder.values() if isinstance(decoder, Mapping) else ()
    marked = [token_text(token) for token in listed if isinstance(token, Mapping) and token.get("special") is True]
    return frozenset(text for text in [*named, *marked] if text)


def _marked(token: AddedToken, special: frozenset[str]) -> AddedToken:
    if token.special or token.content not in special:
        return token
    return AddedToken(token.id, token.content, True, token.lstrip, token.rstrip, token.single_word, token.normalized)


def _steps(decoder: Decoder | None) -> list[Decoder]:
    if decoder is None:
        return []
    return decoder.get("decoders") or [] if decoder.get("type") == "Sequence" else [decoder]


def _spelling(decoder: Decoder | None) -> Spelling:
    """Told by the decoder, the part of the file whose business it is."""
    for step in _steps(decoder):
        if step.get("type") == "ByteLevel":
            return "byte_level"
        if step.get("type") == "Metaspace" and step.get("replacement") == "▁":
            return "sentencepiece"
        if step.get("type") == "Replace" and step.get("pattern") == {"String": "▁"} and step.get("content") == " ":
            return "sentencepiece"
    return "text"


def _strips_leading_space(decoder: Decoder | None) -> bool:
    if decoder is None:
        return True  # without a decoder, tokens are words with a space between them
    for step in _steps(decoder):
        if step.get("type") == "Strip" and step.get("content") == " " and step.get("start", 0) > 0:
            return True
        if step.get("type") == "Metaspace":
            # `add_prefix_space` is the older name of the same choice.
            return step.get("prepend_scheme", "always") != "never" and step.get("add_prefix_space", True) is not False
        if step.get("type") == "WordPiece":
            return True
    return False


def _decoded_pieces(pieces: list[str], added: Mapping[int, AddedToken], decoder: Decoder | None) -> list[str]:
    """For decoders not known here: ask the decoder itself what each piece adds in the middle of a text."""
    if decoder is None:
        return [f" {piece}" if piece else "" for piece in pieces]
    from tokenizers import Tokenizer  # late: the core process shouldn't need it but for such a tokenizer

    empty = {"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}, "decoder": decoder}
    decode = Tokenizer.from_str(msgspec.json.encode(empty).decode()).decoder.decode
    before, between = decode(["a"]), decode(["a", "a"])

    def alone(piece: str) -> str:
        text: str = decode(["a", piece, "a"])
        return text.removeprefix(before).removesuffix(between.removeprefix(before))

    return [piece if token_id in added else alone(piece) for token_id, piece in enumerate(pieces)]
