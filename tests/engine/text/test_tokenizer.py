"""Text to ids as the reference does it, from both layouts, and back."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as NativeTokenizer
from tokenizers import models, pre_tokenizers

from tandem.core.errors import ModelDamaged
from tandem.engine.loading.base import TextFiles
from tandem.engine.text.tokenizer import Tokenizer, load_tokenizer
from tests.engine.text import tiny

STRINGS = [
    "12345 + 67890",
    "Hello world! Café déjà vu — 123 😊",
    "  two leading spaces",
    "tab\there\n\n\nthree newlines",
    "don't WE'LL it's",
    "x=1;\r\ny=2",
    "日本語テキスト",
    "\u200bzero width",
    "a" * 200,
    "",
]
"""tok-01."""
CODE = "def f(x):\n    return [x, 1.5e-3]  # ok\n\n\n\tpass\r\n" + " " * 9 + "삼겹살 👩‍👩‍👧 <b>é</b> user hello world"

GEMMA_IDS = [
    [236770, 236778, 236800, 236812, 236810, 900, 236743, 236825, 236832, 236828, 236819, 236771],
    [9259, 1902, 236888, 62367, 29234, 11042, 2192, 236743, 236770, 236778, 236800, 103453],
    [138, 13498, 5830, 9952],
    [4823, 255968, 8472, 109, 19891, 861, 8721],
    [13246, 236789, 236745, 19716, 236789, 2182, 625, 236789, 236751],
    [236781, 236784, 236770, 236793, 251, 107, 236762, 236784, 236778],
    [94951, 95830],
    [237141, 13321, 2962],
    [128820] * 25,
    [],
]
"""What Gemma 3's own tokenizer.json makes of `STRINGS`, by the tokenizers library."""


def test_smollm2_equals_its_own_tokenizer(smollm2_tokenizer: Tokenizer, smollm2_text: TextFiles) -> None:
    """tok-01: against the pre-tokenizer of SmolLM2's tokenizer.json, put together from the library's parts."""
    values = smollm2_text.values
    vocab = {piece: rank for rank, piece in enumerate(values["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in values["tokenizer.ggml.merges"]]
    reference = NativeTokenizer(models.BPE(vocab=vocab, merges=merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    reference.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    for text in [*STRINGS, CODE]:
        ids = smollm2_tokenizer.encode(text, add_special_tokens=False)
        assert ids == reference.encode(text).ids
        assert smollm2_tokenizer.decode(ids) == text
    assert len(smollm2_tokenizer.encode("12345")) == 5


def test_smollm2_equals_transformers(smollm2_tokenizer: Tokenizer, smollm2: Path) -> None:
    transformers: Any = pytest.importorskip("transformers")
    reference = transformers.AutoTokenizer.from_pretrained(str(smollm2.parent), gguf_file=smollm2.name)
    for text in [*STRINGS, CODE, "<|im_start|>user\nhi<|im_end|>\n"]:
        ids = smollm2_tokenizer.encode(text)
        assert ids == reference(text)["input_ids"]
        assert smollm2_tokenizer.decode(ids) == reference.decode(ids, skip_special_tokens=True)
    assert smollm2_tokenizer.chat_template == reference.chat_template
    assert (smollm2_tokenizer.bos_token_id, smollm2_tokenizer.eos_token_id) == (1, 2)


def test_gemma3_equals_its_own_tokenizer(gemma3_tokenizer: Tokenizer) -> None:
    """tok-01."""
    for text, ids in zip(STRINGS, GEMMA_IDS, strict=True):
        assert gemma3_tokenizer.encode(text, add_special_tokens=False) == ids
        assert gemma3_tokenizer.encode(text) == [2, *ids]
        assert gemma3_tokenizer.decode([2, *ids]) == text
    spaces = gemma3_tokenizer.encode(" " * 40 + "x", add_special_tokens=False)
    assert spaces == [167, 145, 236781]


def test_special_tokens_and_sizes(llama3_like: Tokenizer) -> None:
    bos, end = llama3_like.bos_token_id, llama3_like.eos_token_id
    assert bos is not None
    assert end is not None
    assert llama3_like.vocab_size == len(llama3_like.token_bytes) == max(llama3_like.special_ids) + 4
    assert llama3_like.special_tokens == {"bos_token": "<|bos|>", "eos_token": "<|im_end|>"}
    assert llama3_like.token_text(end) == "<|im_end|>"
    ids = llama3_like.encode("<|bos|>hello<|im_end|>")
    assert (ids[0], ids[-1]) == (bos, end)
    assert llama3_like.decode(ids) == "hello"
    assert llama3_like.decode(ids, skip_special_tokens=False) == "<|bos|>hello<|im_end|>"


@pytest.mark.parametrize("model", ["llama3_like", "llama2_like", "smollm2_tokenizer", "gemma3_tokenizer"])
def test_text_without_control_tokens_has_the_same_ids_either_way(model: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(model)
    chooser = random.Random(1)
    parts = ["hello", " ", "  ", "\n", "</think>", "<tool_call>", "▁", "<", "12", "é", "世", "<0x0A>", "<b>", "user"]
    for text in [*STRINGS, CODE, *("".join(chooser.choices(parts, k=12)) for _ in range(200))]:
        assert tokenizer.encode(text, parse_special=False) == tokenizer.encode(text)


@pytest.mark.parametrize("model", ["llama3_like", "llama2_like", "smollm2_tokenizer", "gemma3_tokenizer"])
def test_without_parsing_no_control_id_comes_from_text(model: str, request: pytest.FixtureRequest) -> None:
    """sec-02, the tokenise endpoint."""
    tokenizer: Tokenizer = request.getfixturevalue(model)
    for token_id in tokenizer.special_ids:
        text = f"a{tokenizer.token_text(token_id)}b {tokenizer.token_text(token_id)}"
        ids = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
        assert tokenizer.special_ids.isdisjoint(ids)
        assert tokenizer.decode(ids) == text


def test_added_tokens_that_anybody_may_write_stay_tokens(llama3_like: Tokenizer) -> None:
    (think,) = llama3_like.encode("</think>", parse_special=False)
    assert llama3_like.token_text(think) == "</think>"
    assert think not in llama3_like.special_ids


def test_a_model_that_could_merge_its_way_to_a_control_token_is_kept_from_it(tmp_path: Path) -> None:
    """Unigram has its control tokens among its pieces, and would choose them."""
    vocab = [["<unk>", 0.0], ["</s>", -0.1], *([letter, -5.0] for letter in "▁</s>ab")]
    document = {
        "version": "1.0",
        "model": {"type": "Unigram", "vocab": vocab, "unk_id": 0},
        "added_tokens": [tiny.byte_level()["added_tokens"][0] | {"id": 1, "content": "</s>"}],
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": False},
    }
    tokenizer = tiny.load(tmp_path, document)
    assert 1 in tokenizer.encode("a</s>b")
    ids = tokenizer.encode("a</s>b", parse_special=False)
    assert 1 not in ids
    assert tokenizer.decode(ids) == "a</s>b"


def test_bos_and_eos_as_the_files_want_them(tmp_path: Path, llama2_like: Tokenizer) -> None:
    assert llama2_like.encode("hello")[0] == 1
    assert llama2_like.encode("") == [1]
    assert 1 not in llama2_like.encode("hello", add_special_tokens=False)
    config = {"bos_token": "<|bos|>", "eos_token": "<|im_end|>", "add_bos_token": True, "add_eos_token": True}
    both = tiny.load(tmp_path / "both", tiny.byte_level(), config)
    assert both.encode("")[:1] == [both.bos_token_id]
    assert both.encode("", parse_special=False)[-1:] == [both.eos_token_id]
    neither = tiny.load(tmp_path / "neither", tiny.sentencepiece(), {"bos_token": "<s>", "add_bos_token": False})
    assert neither.encode("") == []


def test_one_leading_space_is_the_tokenizers(llama2_like: Tokenizer) -> None:
    for text in ["hello world", " hello", "  ", "user\nworld é"]:
        assert llama2_like.decode(llama2_like.encode(text)) == text


def test_files_saved_with_limits_of_a_training_run_do_not_cut_prompts(tmp_path: Path) -> None:
    truncation = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    padding = {
        "strategy": {"Fixed": 16},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "!",
    }
    tokenizer = tiny.load(tmp_path, tiny.byte_level() | {"truncation": truncation, "padding": padding})
    assert len(tokenizer.encode("abcdefgh")) == 8
    assert len(tokenizer.encode("a")) == 1


def test_lone_surrogates_do_not_break_anything(llama3_like: Tokenizer) -> None:
    """JSON can spell half of a surrogate pair; UTF-8 can't."""
    assert llama3_like.decode(llama3_like.encode("a\ud83db")) == "a?b"
    assert llama3_like.encode_plain("\ud83d", follows_token=True) == llama3_like.encode("?")


def test_threads_share_a_tokenizer(llama3_like: Tokenizer) -> None:
    expected = llama3_like.encode("hello world " * 200)
    found: list[bool] = []

    def work() -> None:
        for number in range(40):
            parse = number % 2 == 0
            found.append(llama3_like.encode("hello world " * 200, parse_special=parse) == expected)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 160


def test_a_document_that_makes_no_tokenizer_is_damaged(tmp_path: Path) -> None:
    document = tiny.byte_level()
    document["model"]["merges"].append(["no", "such"])
    with pytest.raises(ModelDamaged, match=r"tokenizer\.json"):
        load_tokenizer(tiny.save(tmp_path, document))
