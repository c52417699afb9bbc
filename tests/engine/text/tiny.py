"""Small tokenizers with every feature that matters, made in memory: byte-level ones and one of SentencePiece's kind."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tandem.engine.loading.base import TextFiles
from tandem.engine.text.gguf_pretokenizers import PRE_TOKENIZERS
from tandem.engine.text.token_bytes import byte_alphabet
from tandem.engine.text.tokenizer import Tokenizer, load_tokenizer

Json = dict[str, Any]

WORDS = ["Ġhello", "hello", "Ġworld", "user", "assistant", "system", "im", "Ġthink", "end", "start", "ĠCaf", "12"]
PIECES = ["▁hello", "▁world", "▁user", "hello", "world", "user", "llo", "▁▁", "▁▁▁▁", "end"]
SPECIAL = ["<|bos|>", "<|im_start|>", "<|im_end|>", "<|tool|>"]
PLAIN_ADDED = ["<think>", "</think>", "<tool_call>"]
"""Added tokens that anybody may write."""


def byte_level(pre: str = "llama-bpe", special: Sequence[str] = SPECIAL, plain: Sequence[str] = PLAIN_ADDED) -> Json:
    """A tokenizer.json with GPT-2's alphabet, a few words, and added tokens behind them, as Llama 3 has it."""
    merges = _merges(WORDS)
    vocab = {piece: rank for rank, piece in enumerate(dict.fromkeys([*byte_alphabet(), *map("".join, merges)]))}
    rules = PRE_TOKENIZERS[pre]
    return {
        "version": "1.0",
        "added_tokens": _added(special, plain, len(vocab)),
        "normalizer": rules.normalizer,
        "pre_tokenizer": rules.as_json(),
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": vocab, "merges": merges, "ignore_merges": rules.ignore_merges},
    }


def sentencepiece(prefix_space: bool = True) -> Json:
    """A tokenizer.json in the manner of Llama 2: ▁ for spaces, <0xNN> for what has no piece, BOS by template."""
    merges = _all_merges([*dict.fromkeys(map("".join, _merges(PIECES)))])
    named = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    letters = sorted({letter for piece in PIECES for letter in piece})
    vocab = {piece: rank for rank, piece in enumerate(dict.fromkeys([*named, *letters, *map("".join, merges)]))}
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix_space else []
    back = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    return {
        "version": "1.0",
        "added_tokens": [_token(rank, text, True) for rank, text in enumerate(named[:3])],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [*([{"type": "Prepend", "prepend": "▁"}] if prefix_space else []), replace],
        },
        "pre_tokenizer": None,
        "post_processor": _adds("<s>", 1),
        "decoder": {"type": "Sequence", "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]},
        "model": {
            "type": "BPE",
            "vocab": vocab,
            "merges": merges,
            "byte_fallback": True,
            "fuse_unk": True,
            "unk_token": "<unk>",
        },
    }


def save(folder: Path, document: Json, config: Json | None = None) -> TextFiles:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    return TextFiles("folder", folder, config or {})


def load(folder: Path, document: Json, config: Json | None = None) -> Tokenizer:
    return load_tokenizer(save(folder, document, config))


def as_gguf(document: Json, pre: str | None = "llama-bpe", **more: Any) -> TextFiles:
    """What a converter would write of the same tokenizer. `more`: further keys, without their prefix."""
    vocab: dict[str, int] = document["model"]["vocab"]
    kinds = {token["id"]: 3 if token["special"] else 4 for token in document["added_tokens"]}
    tokens = {rank: piece for piece, rank in vocab.items()}
    tokens |= {token["id"]: token["content"] for token in document["added_tokens"]}
    pieces = [tokens[rank] for rank in range(len(tokens))]
    byte_kind = [6 if piece.startswith("<0x") else 1 for piece in pieces]
    values = {
        "model": "gpt2",
        "tokens": pieces,
        "token_type": [kinds.get(rank, byte_kind[rank]) for rank in range(len(pieces))],
        "merges": [" ".join(merge) for merge in document["model"]["merges"]],
        **({"pre": pre} if pre is not None else {}),
        **more,
    }
    return TextFiles("gguf", Path("tiny.gguf"), {f"tokenizer.ggml.{key}": value for key, value in values.items()})


def _merges(words: Sequence[str]) -> list[list[str]]:
    """Each word grows letter by letter from its left end."""
    steps = [(word[:cut], word[cut]) for word in words for cut in range(1, len(word))]
    return [list(step) for step in dict.fromkeys(steps)]


def _all_merges(pieces: Sequence[str]) -> list[list[str]]:
    """Every two pieces whose join is a piece; the best join first, of equal ones that with the longer left part."""
    known = {*pieces, *"".join(pieces)}
    cuts = [(rank, -cut) for rank, piece in enumerate(pieces) for cut in range(1, len(piece))]
    found = [[pieces[rank][:-cut], pieces[rank][-cut:]] for rank, cut in sorted(cuts)]
    return [merge for merge in found if known.issuperset(merge)]


def _added(special: Sequence[str], plain: Sequence[str], first: int) -> list[Json]:
    tokens = [*((text, True) for text in special), *((text, False) for text in plain)]
    return [_token(first + rank, text, is_special) for rank, (text, is_special) in enumerate(tokens)]


def _token(token_id: int, content: str, special: bool) -> Json:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": token_id, "content": content, "special": special, **flags}


def _adds(token: str, token_id: int) -> Json:
    first = {"SpecialToken": {"id": token, "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [first, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [first, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {token: {"id": token, "ids": [token_id], "tokens": [token]}},
    }
