"""Every token's bytes, from either layout, without a tokenizer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tandem.core.errors import ModelDamaged, ModelUnsupported
from tandem.engine.loading.base import TextFiles
from tandem.engine.text.token_bytes import byte_alphabet, load_token_bytes, token_bytes
from tandem.engine.text.tokenizer import Tokenizer
from tandem.engine.text.vocabulary import AddedToken, Vocabulary
from tests.engine.text import tiny


def test_the_alphabet_spells_every_byte_once() -> None:
    alphabet = byte_alphabet()
    assert sorted(alphabet.values()) == list(range(256))
    assert (alphabet["Ġ"], alphabet["Ċ"], alphabet["A"], alphabet["ł"]) == (0x20, 0x0A, 0x41, 0xA0)


def test_byte_level_pieces_are_mapped_back_and_added_tokens_are_not() -> None:
    """An added token is written as it reads, even with letters of the alphabet in it."""
    pieces = ["Ġhello", "ä¸ĸ", "<|ĠÉ|>", "", "caf é"]
    table = token_bytes(Vocabulary(pieces, {2: AddedToken(2, "<|ĠÉ|>", special=True)}, "byte_level"))
    assert [table[rank] for rank in range(6)] == [
        b" hello",
        "世".encode(),
        "<|ĠÉ|>".encode(),
        b"",
        "caf é".encode(),
        b"",
    ]
    assert (len(table), table.special_ids) == (5, frozenset({2}))


def test_sentencepiece_pieces() -> None:
    pieces = ["▁hello", "<0x0A>", "<0xE4>", "▁▁", "<0xZZ>", "<s>"]
    added = {3: AddedToken(3, "▁▁"), 5: AddedToken(5, "<s>", special=True)}
    table = token_bytes(Vocabulary(pieces, added, "sentencepiece"))
    assert [table[rank] for rank in range(6)] == [b" hello", b"\n", b"\xe4", b"  ", b"<0xZZ>", b"<s>"]


def test_join_leaves_out_what_it_is_told_to() -> None:
    table = token_bytes(Vocabulary(["a", "b", "c"], {}, "text"))
    assert table.join([0, 1, 2, 9]) == b"abc"
    assert table.join([0, 1, 2], skip=frozenset({1})) == b"ac"


@pytest.mark.parametrize("form", ["folder", "gguf"])
def test_both_layouts_give_the_same_table(form: str, tmp_path: Path) -> None:
    document = tiny.byte_level()
    text = tiny.save(tmp_path, document) if form == "folder" else tiny.as_gguf(document)
    table = load_token_bytes(text)
    vocab: dict[str, int] = document["model"]["vocab"]
    assert table[vocab["Ġhello"]] == b" hello"
    assert table[document["added_tokens"][0]["id"]] == b"<|bos|>"
    assert table.special_ids == {token["id"] for token in document["added_tokens"] if token["special"]}
    assert not table.strips_leading_space


def test_special_tokens_named_in_the_configuration(tmp_path: Path) -> None:
    document = tiny.byte_level()
    think = next(token["id"] for token in document["added_tokens"] if token["content"] == "<think>")
    assert think in load_token_bytes(tiny.save(tmp_path, document, {"pad_token": {"content": "<think>"}})).special_ids
    marked = {"added_tokens_decoder": {str(think): {"content": "<think>", "special": True}}}
    assert think in load_token_bytes(tiny.save(tmp_path, document, marked)).special_ids
    assert think not in load_token_bytes(tiny.save(tmp_path, document)).special_ids


@pytest.mark.parametrize(
    ("decoder", "strips"),
    [
        ({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}, True),
        ({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": True}, False),
        ({"type": "Metaspace", "replacement": "▁", "add_prefix_space": False}, False),
        ({"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}]}, False),
    ],
)
def test_decoders_of_sentencepiece(decoder: tiny.Json, strips: bool, tmp_path: Path) -> None:
    table = load_token_bytes(tiny.save(tmp_path, tiny.sentencepiece() | {"decoder": decoder}))
    assert table.strips_leading_space == strips
    assert b" hello" in [table[rank] for rank in range(len(table))]


def test_unknown_decoders_are_asked_themselves(tmp_path: Path) -> None:
    """What a piece adds in the middle of a text: WordPiece glues, BPE with </w> puts spaces behind words."""
    wordpiece = _words({"type": "WordPiece", "prefix": "##", "cleanup": False}, ["say", "hello", "##ing"])
    table = load_token_bytes(tiny.save(tmp_path / "wordpiece", wordpiece))
    assert (table.join([0, 1, 2]), table.strips_leading_space) == (b" say helloing", True)
    suffix = _words({"type": "BPEDecoder", "suffix": "</w>"}, ["hel", "lo</w>", "you</w>"])
    assert load_token_bytes(tiny.save(tmp_path / "suffix", suffix)).join([0, 1, 2]) == b"hello you "
    none = _words(None, ["say", "hello"])
    assert load_token_bytes(tiny.save(tmp_path / "none", none)).join([0, 1]) == b" say hello"


def _words(decoder: tiny.Json | None, pieces: list[str]) -> tiny.Json:
    vocab = {piece: rank for rank, piece in enumerate(pieces)}
    return {"version": "1.0", "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "say"}, "decoder": decoder}


def test_unigram_lists_pieces_in_the_order_of_their_ids(tmp_path: Path) -> None:
    decoder = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    vocab = [["<unk>", 0.0], ["▁a", -1.0], ["b", -2.5]]
    document = {"version": "1.0", "model": {"type": "Unigram", "vocab": vocab, "unk_id": 0}, "decoder": decoder}
    assert load_token_bytes(tiny.save(tmp_path, document)).join([1, 2]) == b" ab"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"model": 1}',
        '{"model": {"vocab": {}}}',
        '{"model": {"vocab": {"a": -1}}}',
        '{"model": {"vocab": {"a": 9999999999}}}',
    ],
)
def test_damaged_files_are_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelDamaged, match=r"tokenizer\.json"):
        load_token_bytes(TextFiles("folder", tmp_path, {}))


def test_a_folder_without_tokenizer_json_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ModelUnsupported, match="save_pretrained"):
        load_token_bytes(TextFiles("folder", tmp_path, {}))


def test_the_core_needs_no_tokenizer_library() -> None:
    """lp-01, sec: what the core process imports for stop strings is the table only."""
    program = (
        "import sys, tandem.engine.text.text_stream\n"
        "loaded = {'torch', 'tokenizers', 'jinja2', 'transformers'} & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_bytes_of_a_split_character_make_the_text(smollm2_tokenizer: Tokenizer) -> None:
    """lp-01: no letters of the byte alphabet anywhere, and the bytes of all tokens join to the text."""
    text = "今天天气不错 “ok”"
    ids = smollm2_tokenizer.encode(text)
    assert b"".join(smollm2_tokenizer.token_bytes[token_id] for token_id in ids).decode() == text
    shown = [smollm2_tokenizer.token_text(token_id) for token_id in ids]
    assert not {"Ġ", "æ", "ĺ", "¯", "å"} & set("".join(shown))
    assert all(shown)
