"""Recorded traces: the public files, and what is said of a damaged one."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tandem.traffic.azure import read_azure
from tandem.traffic.lines import DatasetError
from tandem.traffic.mooncake import read_mooncake
from tandem.traffic.synthetic import trace_requests
from tandem.traffic.text import TextMaker
from tandem.traffic.trace import TraceRow, cut, read_trace

DATA = Path(__file__).parents[3] / "shared" / "data"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def public(name: str) -> Path:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{name} is not at hand")
    return path


def test_the_azure_conversation_trace_is_read_whole_with_its_last_line_and_its_fractions() -> None:
    rows = read_trace(public("azure_llm_2023_conv.csv"))
    assert len(rows) == 19_366  # the last line has no newline
    assert round(sum(row.input_tokens for row in rows) / len(rows)) == 1155
    assert round(sum(row.output_tokens for row in rows) / len(rows)) == 211
    assert rows[0].at_s == 0.0
    assert rows[1].at_s == pytest.approx(50.9951690 - 46.6805900, abs=1e-6)  # seven fractional digits
    assert (rows[-1].input_tokens, rows[-1].output_tokens) == (197, 183)


def test_the_mooncake_trace_shares_prefixes_exactly_where_its_ids_agree() -> None:
    rows = read_trace(public("mooncake_conversation.jsonl"))
    assert len(rows) == 12_031
    first, second = (c.turns[0].messages[0]["content"].split() for c in trace_requests(rows[:2], TextMaker(7)))
    shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))
    assert rows[0].hash_ids[0] == rows[1].hash_ids[0]
    assert 512 <= shared < 520  # one equal block, then words that agree by chance only
    assert len(first) == rows[0].input_tokens


def test_prompts_of_disjoint_ids_share_nothing_and_equal_ids_everything() -> None:
    rows = [TraceRow(0, 20, 1, ids, 10) for ids in ((1, 2), (1, 2), (3, 4), (1, 5))]
    texts = [c.turns[0].messages[0]["content"].split() for c in trace_requests(rows, TextMaker(0))]
    assert texts[0] == texts[1]
    assert texts[0][:10] == texts[3][:10]
    assert texts[0][10:] != texts[3][10:]
    assert texts[0][:10] != texts[2][:10]


def test_hash_ids_that_cannot_be_are_refused_with_their_row(tmp_path: Path) -> None:
    """tr-02: a row of 20 tokens with two ids of 512-token blocks is impossible."""
    path = tmp_path / "t.jsonl"
    good = '{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [0, 1]}\n'
    path.write_text(good + '{"timestamp": 0, "input_length": 20, "output_length": 1, "hash_ids": [0, 1]}\n')
    with pytest.raises(DatasetError, match=r"t\.jsonl:2: 2 hash_ids for input_length 20.*ceil\(20/512\) = 1"):
        read_mooncake(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", r":1: the columns are missing"),
        ("a,b\n", r":1: the columns are a, b\. Expected the header TIMESTAMP,ContextTokens,GeneratedTokens"),
        (AZURE, "has a header and no requests"),
        (AZURE + "2023-11-16 18:15:46.1,374,44\n2023-11-16 18:15:46.1,374\n", r":3: 2 fields instead of 3"),
        (AZURE + "2023-11-16 18:15:46.1,many,44\n", r":2: .*many"),
        (AZURE + "16.11.2023,1,44\n", r":2: .*Expected TIMESTAMP,"),
        (AZURE + "2023-11-16 18:15:46.1,-3,44\n", r":2: .*negative"),
    ],
)
def test_a_damaged_azure_file_is_refused_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(DatasetError, match=says):
        read_azure(path)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", r":2: this is not JSON"),
        ('{"timestamp": 0}', r":2: .*input_length"),
        ('{"timestamp": 0, "input_length": "x", "output_length": 1}', r":2: .*input_length"),
        ('{"timestamp": 0, "input_length": 0, "output_length": 1}', r":2: input_length 0"),
    ],
)
def test_a_damaged_mooncake_line_is_refused_with_its_number(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 4, "output_length": 1}\n' + line)
    with pytest.raises(DatasetError, match=says):
        read_mooncake(path)


def test_a_missing_file_is_an_error_and_no_traceback() -> None:
    with pytest.raises(DatasetError, match="No such file"):
        read_trace(Path("/nowhere/t.csv"))


def test_a_trace_is_cut_by_count_and_by_time() -> None:
    rows = [TraceRow(at_s, 1, 1) for at_s in (0.0, 1.0, 2.0, 3.0)]
    assert cut(rows, 2, None) == rows[:2]
    assert cut(rows, None, 2.5) == rows[:3]
