"""A GGUF's tokenizer is the folder's, or none at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tandem.core.errors import ModelDamaged, ModelUnsupported
from tandem.engine.loading.base import TextFiles
from tandem.engine.text.gguf_pretokenizers import PRE_TOKENIZERS
from tandem.engine.text.tokenizer import Tokenizer, load_tokenizer
from tests.engine.text import tiny
from tests.engine.text.test_tokenizer import CODE, STRINGS

SPECIAL_TEXTS = ["<|bos|>hello<|im_end|></think> x", "<s>hello</s> world", "  hello   world▁▁ "]


@pytest.mark.parametrize("pre", list(PRE_TOKENIZERS))
def test_byte_level_equals_the_folder(pre: str, tmp_path: Path) -> None:
    document = tiny.byte_level(pre)
    folder = tiny.load(tmp_path, document)
    gguf = load_tokenizer(tiny.as_gguf(document, pre))
    for text in [*STRINGS, CODE, *SPECIAL_TEXTS]:
        assert gguf.encode(text, add_special_tokens=False) == folder.encode(text, add_special_tokens=False)
        assert gguf.encode_plain(text) == folder.encode_plain(text)
    assert (gguf.vocab_size, gguf.special_ids) == (folder.vocab_size, folder.special_ids)


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_scores_equal_the_folders_merges(prefix: bool, tmp_path: Path, llama2_like: Tokenizer) -> None:
    document = tiny.sentencepiece(prefix)
    folder = tiny.load(tmp_path, document, {"bos_token": "<s>", "unk_token": "<unk>"})
    gguf = load_tokenizer(_scored(document, add_space_prefix=prefix, bos_token_id=1, unknown_token_id=0))
    for text in [*STRINGS, CODE, *SPECIAL_TEXTS]:
        assert gguf.encode(text) == folder.encode(text)
        assert gguf.encode_plain(text) == folder.encode_plain(text)
        assert gguf.decode(gguf.encode(text)) == folder.decode(folder.encode(text))


def _scored(document: tiny.Json, **more: Any) -> TextFiles:
    """Scores by the rank of the merge that makes a token, as numpy arrays: so the reader of files gives them."""
    vocab: dict[str, int] = document["model"]["vocab"]
    scores = np.zeros(len(vocab), np.float32)
    for rank, merge in enumerate(document["model"]["merges"]):
        scores[vocab["".join(merge)]] = -1.0 - rank
    text = tiny.as_gguf(document, None, model="llama", scores=scores, merges=[], **more)
    kinds = np.array(text.values["tokenizer.ggml.token_type"], np.int32)
    return TextFiles("gguf", text.path, {**text.values, "tokenizer.ggml.token_type": kinds})


@pytest.mark.parametrize("pre", [None, "default", "my-model"])
def test_an_unknown_pre_tokenizer_is_refused(pre: str | None) -> None:
    """tok-01: not silently split by GPT-2's rules."""
    with pytest.raises(ModelUnsupported, match="pre-tokenizer") as raised:
        load_tokenizer(tiny.as_gguf(tiny.byte_level(), pre))
    assert "smollm" in str(raised.value)


def test_digits_are_split_as_the_name_says() -> None:
    split = {}
    for pre in ("smollm", "qwen2", "gpt-2", "llama-bpe"):
        tokenizer = load_tokenizer(tiny.as_gguf(tiny.byte_level(pre), pre))
        split[pre] = [tokenizer.token_text(token_id) for token_id in tokenizer.encode("1212", add_special_tokens=False)]
    assert split["smollm"] == split["qwen2"] == ["1", "2", "1", "2"]
    assert split["gpt-2"] == ["12", "12"]
    assert split["llama-bpe"] == ["12", "1", "2"]


def test_bos_where_the_file_says_and_else_where_the_family_does() -> None:
    def adds(pre: str, **more: Any) -> bool:
        document = tiny.byte_level(pre)
        bos: int = document["added_tokens"][0]["id"]
        return load_tokenizer(tiny.as_gguf(document, pre, bos_token_id=bos, **more)).encode("x")[0] == bos

    assert adds("llama-bpe")
    assert not adds("llama-bpe", add_bos_token=False)
    assert adds("smollm", add_bos_token=True)
    assert not adds("smollm")


def test_end_tokens_are_special_whatever_their_type() -> None:
    document = tiny.byte_level(plain=["<end>"])
    end = document["added_tokens"][-1]["id"]
    assert end not in load_tokenizer(tiny.as_gguf(document)).special_ids
    assert end in load_tokenizer(tiny.as_gguf(document, eot_token_id=end)).special_ids


def test_unused_tokens_have_an_id_and_nothing_else() -> None:
    text = tiny.as_gguf(tiny.byte_level())
    values = dict(text.values)
    values["tokenizer.ggml.tokens"] = [*values["tokenizer.ggml.tokens"], "[PAD0]", "[PAD0]"]
    values["tokenizer.ggml.token_type"] = [*values["tokenizer.ggml.token_type"], 5, 5]
    tokenizer = load_tokenizer(TextFiles("gguf", text.path, values))
    assert tokenizer.decode(tokenizer.encode("[PAD0]")) == "[PAD0]"
    assert max(tokenizer.encode("[PAD0]")) < tokenizer.vocab_size - 2


@pytest.mark.parametrize(
    ("changes", "error", "word"),
    [
        ({"model": "t5"}, ModelUnsupported, "t5"),
        ({"model": 3}, ModelDamaged, "model"),
        ({"tokens": []}, ModelDamaged, "0 tokens"),
        ({"tokens": "abc"}, ModelDamaged, "tokens"),
        ({"tokens": [1, 2]}, ModelDamaged, "tokens"),
        ({"token_type": [1]}, ModelDamaged, "token_type"),
        ({"token_type": "no"}, ModelDamaged, "token_type"),
        ({"merges": ["x"]}, ModelDamaged, "merges"),
        ({"merges": ["no such"]}, ModelDamaged, "merges"),
        ({"model": "llama", "merges": []}, ModelDamaged, "scores"),
        ({"add_bos_token": "yes"}, ModelDamaged, "add_bos_token"),
    ],
)
def test_damaged_metadata_is_named(changes: dict[str, Any], error: type[Exception], word: str) -> None:
    with pytest.raises(error, match=word):
        load_tokenizer(tiny.as_gguf(tiny.byte_level(), **changes))


def test_ids_out_of_the_vocabulary_are_no_tokens() -> None:
    tokenizer = load_tokenizer(tiny.as_gguf(tiny.byte_level(), bos_token_id=10**6))
    assert tokenizer.bos_token_id is None


def test_chat_template_in_the_metadata() -> None:
    text = tiny.as_gguf(tiny.byte_level())
    with_template = TextFiles("gguf", text.path, {**text.values, "tokenizer.chat_template": "x"})
    assert load_tokenizer(with_template).chat_template == "x"
    with pytest.raises(ModelDamaged, match="chat_template"):
        load_tokenizer(TextFiles("gguf", text.path, {**text.values, "tokenizer.chat_template": 3}))
