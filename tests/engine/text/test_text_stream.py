"""Tokens to visible text, with the token at which a stop string ended it."""

from __future__ import annotations

import pytest

from tandem.core.sampling_params import SamplingParams
from tandem.engine.text.text_stream import TextDelta, TextStream
from tandem.engine.text.token_bytes import TokenBytes

LETTERS = [b"D", b"EF", b"G", b"HI", b"J", b"K"]


def test_a_push_of_many_tokens_tells_which_one_completed_the_stop() -> None:
    stream = TextStream(TokenBytes(LETTERS), stop=["DEFGHIJ"])
    assert stream.push([0, 1, 2, 3, 4, 5]) == TextDelta("", "DEFGHIJ", 5)
    assert stream.finish() == ""


@pytest.mark.parametrize("group", [1, 2, 3, 6])
def test_groups_change_nothing(group: int) -> None:
    """stop-01: the count of tokens includes the one that completed the stop string, and no later one."""
    stream = TextStream(TokenBytes(LETTERS), stop=["GH"], include_stop=True)
    text, used = "", 0
    for start in range(0, 6, group):
        delta = stream.push(list(range(6))[start : start + group])
        text, used = text + delta.text, used + delta.num_tokens_used
        if delta.stop is not None:
            break
    assert (text, used) == ("DEFGH", 4)


def test_without_stop_strings_all_tokens_are_used() -> None:
    stream = TextStream(TokenBytes(LETTERS))
    assert stream.push([0, 1]) == TextDelta("DEF", None, 2)
    assert stream.push([]) == TextDelta("", None, 0)


def test_finish_releases_held_text_and_half_a_character() -> None:
    stream = TextStream(TokenBytes([b"x", b"?", b"\xf0\x9f"]), stop=["?\n"])
    assert stream.push([0, 1]).text == "x"
    assert stream.push([2]).text == ""
    assert stream.finish() == "?\ufffd"
    assert stream.finish() == ""


def test_a_stop_string_of_split_characters_is_found() -> None:
    stream = TextStream(TokenBytes(["a世".encode()[:2], "世".encode()[1:] + b"b"]), stop=["世"])
    assert stream.push([0, 1]) == TextDelta("a", "世", 2)


def test_min_tokens_counts_tokens_over_all_pushes() -> None:
    stream = TextStream(TokenBytes([b"."]), stop=["."], min_tokens=3)
    assert stream.push([0]) == TextDelta(".", None, 1)
    assert stream.push([0, 0, 0]) == TextDelta(".", ".", 2)


def test_special_tokens_count_but_are_not_shown() -> None:
    table = TokenBytes([b"a", b"<|end|>"], special_ids=frozenset({1}))
    assert TextStream(table, stop=["aa"]).push([0, 1, 0, 0]) == TextDelta("", "aa", 3)
    assert TextStream(table, skip_special_tokens=False).push([0, 1]).text == "a<|end|>"


def test_an_answer_keeps_its_leading_space() -> None:
    table = TokenBytes([b" hello"], strips_leading_space=True)
    assert TextStream(table).push([0]).text == " hello"
    assert TextStream(table, at_start=True).push([0]).text == "hello"


def test_parameters_of_a_request() -> None:
    sampling = SamplingParams(stop=("J",), include_stop_str_in_output=True, skip_special_tokens=False, min_tokens=1)
    assert TextStream.of(TokenBytes(LETTERS), sampling).push([3, 4, 5]) == TextDelta("HIJ", "J", 2)
