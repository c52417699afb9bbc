"""Builds a tokenizer from a GGUF's metadata. Knows the two kinds it can hold; leaves the work to the library.

The tokenizer is written down in the language of tokenizer.json and handed over in one piece: 49,152 tokens take less
than a tenth of a second that way, and encoding runs at the library's speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from tokenizers import Tokenizer as NativeTokenizer

from tandem.core.errors import ModelDamaged, ModelUnsupported
from tandem.engine.loading.base import TextFiles
from tandem.engine.text.gguf_pretokenizers import PRE_TOKENIZERS, Json, PreTokenizer, byte_level
from tandem.engine.text.gguf_vocabulary import GGUFTokens, TokenType, template_of, vocabulary_of
from tandem.engine.text.parts import TokenizerParts
from tandem.engine.text.vocabulary import Vocabulary

_NAMES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
"""Name in a chat template → key of the id in the metadata."""
_NOT_MERGED = (TokenType.UNKNOWN, TokenType.CONTROL, TokenType.UNUSED, TokenType.BYTE)


def gguf_parts(text: TextFiles) -> TokenizerParts:
    """Raises `ModelUnsupported` for tokenizers Tandem doesn't have, `ModelDamaged` for metadata that can't be right."""
    tokens = GGUFTokens(text)
    vocabulary = vocabulary_of(tokens)
    pre_tokenizer = _pre_tokenizer(tokens) if tokens.model == "gpt2" else None
    rules = _byte_level(tokens, pre_tokenizer) if pre_tokenizer else _sentencepiece(tokens)
    adds_bos = tokens.flag("add_bos_token", pre_tokenizer.adds_bos if pre_tokenizer else True)
    adds_eos = tokens.flag("add_eos_token", False)
    bos, eos = tokens.token_id("bos_token_id"), tokens.token_id("eos_token_id")
    return TokenizerParts(
        native=_native(rules, vocabulary, tokens),
        vocabulary=vocabulary,
        prefix_ids=[bos] if adds_bos and bos is not None else [],
        suffix_ids=[eos] if adds_eos and eos is not None else [],
        special_tokens={
            name: tokens.pieces[token_id]
            for name, key in _NAMES.items()
            if (token_id := tokens.token_id(key)) is not None
        },
        chat_template=template_of(text.values, text.path),
    )


def _native(rules: Json, vocabulary: Vocabulary, tokens: GGUFTokens) -> NativeTokenizer:
    added = [msgspec.to_builtins(token) for token in vocabulary.added.values()]
    document = {"version": "1.0", "added_tokens": added, "post_processor": None} | rules
    try:
        return NativeTokenizer.from_str(msgspec.json.encode(document).decode())
    except Exception as error:  # the library raises plain Exception for all that is wrong in a document
        raise ModelDamaged(f"{tokens.path}: its vocabulary and merges don't make a tokenizer: {error}.") from error


def _pre_tokenizer(tokens: GGUFTokens) -> PreTokenizer:
    name = tokens.name("pre")
    if name in PRE_TOKENIZERS:
        return PRE_TOKENIZERS[name]
    given = f"names the pre-tokenizer {name!r}" if name else "doesn't name its pre-tokenizer (tokenizer.ggml.pre)"
    raise ModelUnsupported(
        f"{tokens.path} {given}, so its text would be split wrongly and its answers be worse for it. Known names: "
        f"{', '.join(PRE_TOKENIZERS)}. Convert the model again with a current converter, or serve its original folder."
    )


def _byte_level(tokens: GGUFTokens, pre_tokenizer: PreTokenizer) -> Json:
    return {
        "normalizer": pre_tokenizer.normalizer,
        "pre_tokenizer": pre_tokenizer.as_json(),
        "decoder": byte_level(True),
        "model": _bpe(tokens, tokens.texts("merges")) | {"ignore_merges": pre_tokenizer.ignore_merges},
    }


def _sentencepiece(tokens: GGUFTokens) -> Json:
    """A space before the text comes from the normaliser, which sees each stretch between control tokens by itself."""
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    prepend = [{"type": "Prepend", "prepend": "▁"}] if tokens.flag("add_space_prefix", True) else []
    unknown = tokens.token_id("unknown_token_id")
    bpe = _bpe(tokens, tokens.texts("merges") or _merges_from_scores(tokens))
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*prepend, replace]},
        "pre_tokenizer": None,
        "decoder": None,
        "model": bpe
        | {"byte_fallback": True, "fuse_unk": True, "unk_token": None if unknown is None else tokens.pieces[unknown]},
    }


def _bpe(tokens: GGUFTokens, merges: Sequence[Any]) -> Json:
    """Of two tokens of one spelling the first counts; unused ones (padding) stay out."""
    vocab: dict[str, int] = {}
    for token_id, (piece, kind) in enumerate(zip(tokens.pieces, tokens.types, strict=True)):
        if kind != TokenType.UNUSED:
            vocab.setdefault(piece, token_id)
    return {"type": "BPE", "vocab": vocab, "merges": merges}


def _merges_from_scores(tokens: GGUFTokens) -> list[tuple[str, str]]:
    """SentencePiece keeps scores, not merges: any two tokens whose join is a token may merge, the best join first.

    User-defined tokens come before all others. Of equal scores the longer left part wins, as in Hugging Face's own.
    """
    scores = tokens.numbers("scores")
    if not scores:
        raise ModelDamaged(f"{tokens.path} has neither tokenizer.ggml.merges nor tokenizer.ggml.scores.")
    rows = zip(tokens.pieces, tokens.types, scores, strict=True)
    ranks = {
        piece: float("inf") if kind == TokenType.USER_DEFINED else score
        for piece, kind, score in rows
        if kind not in _NOT_MERGED
    }
    found = [
        (rank, cut, len(piece) - cut, piece)
        for piece, rank in ranks.items()
        for cut in range(1, len(piece))
        if piece[:cut] in ranks and piece[cut:] in ranks
    ]
    found.sort(key=lambda merge: merge[:3], reverse=True)
    return [(piece[:cut], piece[cut:]) for _, cut, _, piece in found]
