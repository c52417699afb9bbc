"""How text is split before byte-level BPE, by the name a GGUF gives (`tokenizer.ggml.pre`). A table, no code.

The merges of a vocabulary were learned on text split in one particular way. Split otherwise, the same vocabulary gives
other tokens: more of them, which the model has never seen in that order, and nothing fails. So the name is believed,
and where it is missing or not in this table the file is refused.

The patterns are those of the models' own tokenizer.json files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """`steps` and `normalizer` are in the language of tokenizer.json."""

    steps: tuple[Json, ...]
    normalizer: Json | None = None
    ignore_merges: bool = False
    """A whole word that is a token is taken at once, though the merges might not lead there."""
    adds_bos: bool = False
    """Whether a text begins with BOS where the file doesn't say."""

    def as_json(self) -> Json:
        return {"type": "Sequence", "pretokenizers": list(self.steps)}


def byte_level(use_regex: bool) -> Json:
    """Bytes to letters; with the pattern of GPT-2 in front of it if asked for."""
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _split(pattern: str) -> tuple[Json, ...]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}, byte_level(False)


_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_LEAD, _UPPER, _LOWER = r"[^\r\n\p{L}\p{N}]?", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_PUNCTUATION = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_GPT4O = (
    rf"{_LEAD}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_LEAD}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}|{_PUNCTUATION}|{_SPACES}"
)
_TEKKEN = rf"{_LEAD}{_UPPER}*{_LOWER}+|{_LEAD}{_UPPER}+{_LOWER}*|\p{{N}}|{_PUNCTUATION}|{_SPACES}"

_gpt2 = PreTokenizer((byte_level(True),))
_smollm = PreTokenizer(({"type": "Digits", "individual_digits": True}, byte_level(True)))
_llama3 = PreTokenizer(_split(_LLAMA3), ignore_merges=True, adds_bos=True)
_qwen2 = PreTokenizer(_split(_QWEN2), normalizer={"type": "NFC"})
_gpt4o = PreTokenizer(_split(_GPT4O), ignore_merges=True)
_tekken = PreTokenizer(_split(_TEKKEN), ignore_merges=True, adds_bos=True)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "gpt-2": _gpt2,
    "gpt2": _gpt2,
    "smollm": _smollm,
    "llama-bpe": _llama3,
    "llama-v3": _llama3,
    "llama3": _llama3,
    "qwen2": _qwen2,
    "deepseek-r1-qwen": _qwen2,
    "gpt-4o": _gpt4o,
    "llama4": _gpt4o,
    "tekken": _tekken,
}
"""tokenizer.ggml.pre → how to split."""
