"""Text comes out of tokens whole, in order, once."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tandem.engine.text.detokenizer import IncrementalDetokenizer
from tandem.engine.text.token_bytes import TokenBytes
from tandem.engine.text.tokenizer import Tokenizer

GROUPS = (1, 2, 3, 7)


def pushed(table: TokenBytes, token_ids: Sequence[int], group: int, skip: frozenset[int] = frozenset()) -> list[str]:
    detokenizer = IncrementalDetokenizer(table, skip)
    starts = range(0, len(token_ids), group)
    return [*(detokenizer.push(token_ids[at : at + group]) for at in starts), detokenizer.finish()]


def test_half_a_character_is_never_shown() -> None:
    table = TokenBytes([b"A", " 世".encode(), b"\xf0\x9f", b"\x98\x80", b"\xe4\xb8", b"a", b"b"])
    assert pushed(table, [0, 1, 4], 1) == ["A", " 世", "", "\ufffd"]
    assert pushed(table, [0, 2, 3], 1) == ["A", "", "😀", ""]
    assert pushed(table, [0, 1, 4, 5], 1) == ["A", " 世", "", "\ufffda", ""]
    assert pushed(table, [0, 1, 4, 5, 6], 1) == ["A", " 世", "", "\ufffda", "b", ""]


def test_a_cut_character_is_one_replacement_at_the_very_end() -> None:
    """str-02: max_tokens falls into the middle of an emoji."""
    table = TokenBytes([b"ok ", b"\xf0", b"\x9f", b"\x98", b"\x80"])
    for length in (2, 3, 4):
        *deltas, tail = pushed(table, [0, 1, 2, 3, 4][:length], 1)
        assert "\ufffd" not in "".join(deltas)
        assert tail == "\ufffd"
        assert "".join([*deltas, tail]).encode()  # no lone surrogates


def test_finish_gives_the_tail_once() -> None:
    detokenizer = IncrementalDetokenizer(TokenBytes([b"\xe4\xb8"]))
    assert (detokenizer.push([0]), detokenizer.finish(), detokenizer.finish()) == ("", "\ufffd", "")


@pytest.mark.parametrize("group", GROUPS)
def test_any_bytes_in_any_groups_decode_as_a_whole(group: int) -> None:
    """Each byte, valid or not, is a token: the same U+FFFDs come out as from one `bytes.decode`."""
    table = TokenBytes([bytes([byte]) for byte in range(256)])
    chooser = random.Random(group)
    pieces = [
        b"\xf0\x9f\x98\x80",
        "é".encode(),
        "世".encode(),
        b"\xed\xa0\x80",
        b"\xc0\xaf",
        b"\xf5",
        b"\xe4\xb8",
        b"A",
    ]
    for _ in range(300):
        data = b"".join(chooser.choices(pieces, k=8)) + bytes(chooser.choices(range(256), k=4))
        assert "".join(pushed(table, data, group)) == data.decode("utf-8", "replace")


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("model", ["smollm2_tokenizer", "gemma3_tokenizer", "llama3_like", "llama2_like"])
def test_random_tokens_in_any_groups_decode_as_a_whole(model: str, group: int, request: pytest.FixtureRequest) -> None:
    """str-03: 300 sequences of 64 ids; nothing is repeated or lost, with special tokens shown or not."""
    tokenizer: Tokenizer = request.getfixturevalue(model)
    chooser = random.Random(group)
    for skips in (True, False):
        skip = tokenizer.special_ids if skips else frozenset[int]()
        for _ in range(150):
            ids = [chooser.randrange(tokenizer.vocab_size) for _ in range(64)]
            assert "".join(pushed(tokenizer.token_bytes, ids, group, skip)) == tokenizer.decode(
                ids, skip_special_tokens=skips
            )


@pytest.mark.parametrize("text", ["삼겹살 👩‍👩‍👧 ok", "é", "A 世ab", "مرحبا \u200f!"])
def test_texts_come_back_token_by_token(text: str, smollm2_tokenizer: Tokenizer) -> None:
    """str-03: Hangul, joined emoji, combining accents."""
    assert "".join(pushed(smollm2_tokenizer.token_bytes, smollm2_tokenizer.encode(text), 1)) == text


def test_special_tokens_are_left_out_even_inside_a_character() -> None:
    table = TokenBytes([b"\xe4", b"\xb8\x96", b"<|end|>"], special_ids=frozenset({2}))
    assert pushed(table, [0, 2, 1], 1, table.special_ids) == ["", "", "世", ""]
    assert "".join(pushed(table, [0, 2, 1], 1)) == "\ufffd<|end|>\ufffd\ufffd"


def test_one_leading_space_is_the_tokenizers_only_at_the_start() -> None:
    table = TokenBytes([b"  hello", b" world", b""], strips_leading_space=True)
    assert pushed(table, [2, 0, 1], 1) == ["", " hello", " world", ""]
    continued = IncrementalDetokenizer(table, at_start=False)
    assert continued.push([0]) == "  hello"


def test_ids_beyond_the_vocabulary_are_no_text() -> None:
    """A padded embedding has rows that no tokenizer knows."""
    assert pushed(TokenBytes([b"a"]), [0, 7, 0], 1) == ["a", "", "a", ""]
