"""Stop strings: found wherever they lie, never partly shown, and nothing else held for long."""

from __future__ import annotations

import random

import pytest

from tandem.engine.text.stop import StopChecker


def run(texts: list[str], stop: list[str], include_stop: bool = False) -> tuple[list[str], str | None]:
    checker = StopChecker(stop, include_stop)
    deltas = [checker.push(text, number) for number, text in enumerate(texts, start=1)]
    deltas.append(checker.finish())
    assert checker.finish() == ""
    return deltas, checker.matched


def expected(text: str, stop: list[str], include_stop: bool) -> tuple[str, str | None]:
    """Character by character, with nothing clever."""
    for end in range(1, len(text) + 1):
        found = [candidate for candidate in stop if text[:end].endswith(candidate)]
        if found:
            matched = max(found, key=len)
            return text[: end if include_stop else end - len(matched)], matched
    return text, None


@pytest.mark.parametrize(
    ("texts", "shown"),
    [
        (["D", "EF", "G", "HI", "J", "K"], ""),
        (["DE", "FG", "HIJK"], ""),
        (["XD", "EFGHIJ"], "X"),
    ],
)
def test_a_stop_string_over_several_tokens_is_never_partly_sent(texts: list[str], shown: str) -> None:
    """stop-01."""
    deltas, matched = run(texts, ["DEFGHIJ"])
    assert ("".join(deltas), matched) == (shown, "DEFGHIJ")
    with_stop, _ = run(texts, ["DEFGHIJ"], include_stop=True)
    assert "".join(with_stop) == shown + "DEFGHIJ"


@pytest.mark.parametrize(
    ("texts", "stop", "shown", "matched"),
    [
        ([" Alice", "!"], ["\n", "Alice:"], " Alice!", None),
        (["x", "?"], ["?\n"], "x?", None),
        (["aa", "ab"], ["aab"], "a", "aab"),
        ([" N", " O", " Q"], ["O P Q"], " N O Q", None),
    ],
)
def test_text_held_back_is_released_exactly_once(
    texts: list[str], stop: list[str], shown: str, matched: str | None
) -> None:
    """stop-02."""
    deltas, found = run(texts, stop)
    assert ("".join(deltas), found) == (shown, matched)


def test_only_the_longest_possible_beginning_is_held_back() -> None:
    checker = StopChecker(["abac"])
    assert checker.push("xab", 1) == "x"
    assert checker.push("a", 2) == ""
    assert checker.push("b", 3) == "ab"  # "abab": the later "ab" may still become "abac"
    assert checker.push("z", 4) == "abz"


def test_of_several_the_first_to_be_complete_wins_and_then_the_longest() -> None:
    assert run(["abcd"], ["abcd", "bc"]) == (["a", ""], "bc")
    assert run(["xabc"], ["bc", "abc", "c"]) == (["x", ""], "abc")


@pytest.mark.parametrize("include_stop", [False, True])
def test_the_answer_does_not_depend_on_how_the_text_is_cut(include_stop: bool) -> None:
    chooser = random.Random(5)
    for _ in range(4000):
        stop = ["".join(chooser.choices("abc", k=chooser.randint(1, 5))) for _ in range(chooser.randint(1, 4))]
        text = "".join(chooser.choices("abcd", k=chooser.randint(0, 20)))
        pieces, at = [], 0
        while at < len(text):
            size = chooser.randint(1, 4)
            pieces.append(text[at : at + size])
            at += size
        deltas, matched = run(pieces, stop, include_stop)
        assert ("".join(deltas), matched) == expected(text, stop, include_stop), (stop, pieces)


def test_a_stop_string_complete_too_early_is_text() -> None:
    checker = StopChecker(["ab"], min_tokens=3)
    shown = [checker.push(text, number) for number, text in enumerate(["ab", "a", "b", "c"], start=1)]
    assert ("".join(shown), checker.matched) == ("ab", "ab")


def test_a_stop_string_begun_early_and_complete_in_time_counts() -> None:
    checker = StopChecker(["abc"], min_tokens=2)
    assert (checker.push("xab", 1), checker.push("cd", 2), checker.matched) == ("x", "", "abc")


def test_nothing_follows_a_stop() -> None:
    checker = StopChecker(["."])
    assert (checker.push("a.b", 1), checker.push("c", 2), checker.finish()) == ("a", "", "")


def test_sixty_four_long_stop_strings_cost_little() -> None:
    """Work is bounded per character, though all of these nearly match."""
    checker = StopChecker(["a" * (1023 - number) + "b" for number in range(64)])
    shown = "".join(checker.push("a" * 50, number) for number in range(200))
    assert (shown + checker.finish(), checker.matched) == ("a" * 10_000, None)
