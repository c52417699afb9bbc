"""The user's own files, made-up traffic, and text of a wanted length."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tandem.core.errors import ConfigError
from tandem.traffic.datasets import read_jsonl, read_sharegpt
from tandem.traffic.lengths import parse_lengths
from tandem.traffic.lines import DatasetError
from tandem.traffic.synthetic import (
    Retrieval,
    Sessions,
    random_requests,
    retrieval_requests,
    session_requests,
)
from tandem.traffic.text import Ratio, TextMaker, fit_ratio

FIXED = parse_lengths("64", "x")


def test_lengths_are_drawn_from_what_was_written() -> None:
    import random

    rng = random.Random(0)
    assert {FIXED.draw(rng) for _ in range(9)} == {64}
    ranged = {parse_lengths("3:5", "x").draw(rng) for _ in range(99)}
    assert ranged == {3, 4, 5}
    normal = [parse_lengths("normal:100:10", "x").draw(rng) for _ in range(2000)]
    assert sum(normal) / len(normal) == pytest.approx(100, abs=1)
    assert min(normal) >= 1


@pytest.mark.parametrize("text", ["", "0", "5:3", "a", "1:2:3", "normal:5", "normal:5:-1", "-4"])
def test_a_wrong_length_names_the_setting_and_the_forms(text: str) -> None:
    with pytest.raises(ConfigError, match=r"input_len is .*normal:512:128"):
        parse_lengths(text, "input_len")


def test_a_ratio_through_two_probes_gives_prompts_of_the_wanted_length() -> None:
    ratio = fit_ratio((16, 16 * 2 + 7), (144, 144 * 2 + 7))
    assert ratio == Ratio(2.0, 7.0)
    text = TextMaker(0, ratio).unique(207)
    assert 2 * len(text.split()) + 7 == 207


def test_a_senseless_ratio_is_not_believed() -> None:
    assert fit_ratio((16, 50), (144, 20)) == Ratio()


def test_texts_differ_from_their_first_words_and_are_the_same_for_the_same_seed() -> None:
    one, other = TextMaker(1), TextMaker(1)
    texts = [one.unique(50) for _ in range(200)]
    assert texts == [other.unique(50) for _ in range(200)]
    assert len({" ".join(text.split()[:4]) for text in texts}) == 200
    assert TextMaker(2).unique(50) not in texts


def test_random_requests_have_the_lengths_asked_for() -> None:
    found = list(random_requests(5, parse_lengths("10:20", "x"), FIXED, TextMaker(0), seed=0))
    assert len(found) == 5
    for conversation in found:
        (turn,) = conversation.turns
        assert 10 <= len(turn.messages[0]["content"].split()) == turn.input_tokens <= 20
        assert turn.max_tokens == 64


def test_sessions_share_their_system_prompt_and_nothing_else() -> None:
    shape = Sessions(num_turns=3, system_tokens=30, pause_s=1.0)
    a, b = session_requests(2, shape, FIXED, FIXED, TextMaker(0), seed=0)
    assert [len(c.turns) for c in (a, b)] == [3, 3]
    assert a.turns[0].messages[0] == b.turns[0].messages[0]
    assert a.turns[0].messages[0]["role"] == "system"
    assert a.turns[0].messages[1] != b.turns[0].messages[1]
    assert a.turns[0].pause_s == 0.0
    assert a.turns[1].pause_s > 0.0


def test_retrieval_prompts_share_popular_passages() -> None:
    found = list(retrieval_requests(40, Retrieval(num_documents=5), parse_lengths("400", "x"), FIXED, TextMaker(0), 0))
    texts = [c.turns[0].messages[0]["content"] for c in found]
    passages = [part for text in texts for part in text.split("\n\n") if part.startswith("[")]
    assert len(set(passages)) == 5
    assert passages.count(next(p for p in passages if p.startswith("[0]"))) > passages.count(
        next(p for p in passages if p.startswith("[4]"))
    )
    assert len({text.rpartition("Question: ")[2] for text in texts}) == 40


def test_the_users_lines_are_taken_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    lines = [
        {"prompt": "one two three"},
        {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5, "extra": {"top_p": 0.5}, "timestamp_s": 2.5},
    ]
    path.write_text("\n\n".join(json.dumps(line) for line in lines))
    first, second = read_jsonl(path, 64, Ratio())
    assert (first.turns[0].max_tokens, first.turns[0].must_reach_max) == (64, False)
    assert (second.turns[0].max_tokens, second.turns[0].must_reach_max) == (5, True)
    assert (second.extra, second.at_s) == ({"top_p": 0.5}, 2.5)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{}", ":2: the line has neither prompt nor messages"),
        ('{"prompt": "a", "messages": []}', ":2: the line has both"),
        ('{"prompt": 3}', r":2: .*prompt"),
        ("nonsense", ":2: this is not JSON"),
        ('{"messages": [{"content": "x"}]}', ":2: messages are empty or lack a role"),
        ('{"prompt": "a", "max_tokens": 0}', ":2: max_tokens is 0"),
    ],
)
def test_a_damaged_line_is_named_with_what_is_expected(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text('{"prompt": "fine"}\n' + line + "\n")
    with pytest.raises(DatasetError, match=says) as caught:
        read_jsonl(path, 64, Ratio())
    assert "Expected" in caught.value.message


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text("\n")
    with pytest.raises(DatasetError, match="has no requests"):
        read_jsonl(path, 64, Ratio())


def test_sharegpt_gives_the_first_question_and_the_answers_length(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    talk = [
        {"from": "human", "value": "why is that"},
        {"from": "gpt", "value": "a b c d e"},
        {"from": "human", "value": "x"},
    ]
    path.write_text(
        json.dumps([{"id": "1", "conversations": talk}, {"conversations": [{"from": "gpt", "value": "hm"}]}])
    )
    (conversation,) = read_sharegpt(path, Ratio(2.0, 0.0), seed=0)
    assert conversation.turns[0].messages == ({"role": "user", "content": "why is that"},)
    assert conversation.turns[0].max_tokens == 10


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[{"conversations": [{"from": 1}]}]', "entry 0"),
        ('[\n{"conversations": []},\n{"conv', r"s\.json:3: this is not JSON"),
        ("[]", "no conversation with a question and an answer"),
    ],
)
def test_a_damaged_sharegpt_file_says_where(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "s.json"
    path.write_text(text)
    with pytest.raises(DatasetError, match=says):
        read_sharegpt(path, Ratio(), seed=0)
