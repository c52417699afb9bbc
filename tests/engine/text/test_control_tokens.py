"""Control tokens are found as the tokenizer finds them, and can be broken up."""

from __future__ import annotations

import random
import time

from tandem.engine.text.control_tokens import ControlToken, ControlTokens
from tandem.engine.text.vocabulary import AddedToken


def tokens(*spellings: str, **flags: bool) -> ControlTokens:
    return ControlTokens(AddedToken(rank, spelling, special=True, **flags) for rank, spelling in enumerate(spellings))


def test_leftmost_first_and_of_several_the_longest() -> None:
    found = list(tokens("<a>", "<a><b>", "<b>").find_all("x<a><b><b><a"))
    assert found == [ControlToken(1, 7, 1), ControlToken(7, 10, 2)]


def test_white_space_that_a_token_swallows() -> None:
    assert list(tokens("<a>", lstrip=True, rstrip=True).find_all("x  <a> \n<a> y")) == [
        ControlToken(1, 8, 0),
        ControlToken(8, 12, 0),
    ]
    assert list(tokens("<a>", single_word=True).find_all("x<a> <a>")) == [ControlToken(5, 8, 0)]


def test_only_control_tokens_count() -> None:
    """Special ones, and marks between turns that a file forgot to call special; not what anybody may write."""
    added = [AddedToken(0, "<think>"), AddedToken(1, "<|user|>"), AddedToken(2, "<s>", special=True)]
    assert [token.token_id for token in ControlTokens(added).find_all("<think><|user|><s>")] == [1, 2]


def test_defused_text_has_no_control_token_and_is_the_same_without_the_breaker() -> None:
    control, chooser = tokens("<a>", "<ab>", "aba", "<a><b>"), random.Random(3)
    for _ in range(2000):
        text = "".join(chooser.choices(["<", ">", "a", "b", "<a>", "aba"], k=8))
        defused = control.defuse(text, "!")
        assert defused.replace("!", "") == text
        assert not list(control.find_all(defused))


def test_the_beginning_of_a_token_at_the_end_is_broken_up_too() -> None:
    """Two texts that a template writes one behind the other must not make one together."""
    control = tokens("<|im_end|>", "<|x|>")
    assert control.defuse("a<|im_", "!") == "a<!|im_"
    assert control.defuse("a<", "!") == "a<!"
    assert control.defuse("a<b", "!") == "a<b"
    assert control.defuse("a<|im_ b", "!") == "a<|im_ b"


def test_a_page_full_of_tags_costs_little() -> None:
    """Each "<" is looked at, but neither with all tokens nor with the rest of the page."""
    control, page = tokens(*(f"<unused{number}>" for number in range(6000))), "<b>x</b> " * 50_000
    start = time.monotonic()
    assert control.defuse(page, "!") == page
    assert not list(control.find_all(page))
    assert time.monotonic() - start < 2


def test_a_vocabulary_without_control_tokens() -> None:
    assert not list(tokens().find_all("<a>"))
    assert tokens().defuse("<a>", "!") == "<a>"
