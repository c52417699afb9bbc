"""Settings → what is sent and when; and the line that a person sees meanwhile."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from tandem.core.clock import ManualClock
from tandem.core.errors import ConfigError
from tandem.loadtest.bench import measure
from tandem.loadtest.bodies import Bodies
from tandem.loadtest.client import Client
from tandem.loadtest.live import progress_line
from tandem.loadtest.runner import Load
from tandem.loadtest.sender import Patience, Sender
from tandem.loadtest.settings import LoadSettings, TargetSettings
from tandem.loadtest.workload import make_load
from tandem.traffic.text import Ratio, TextMaker
from tests.loadtest.fake_server import FakeServer, streamed
from tests.loadtest.recorded import failed, succeeded

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.0000000,40,4
2023-11-16 18:15:46.5000000,20,2
2023-11-16 18:15:48.0000000,1000,4"""


def load(ratio: Ratio | None = None, **settings: Any) -> Load:
    return make_load(LoadSettings(**settings), TextMaker(0, ratio))


def first(made: Load, count: int) -> list[tuple[float, int]]:
    """(due, prompt words) of the first requests."""
    assert made.offsets is not None
    pairs = itertools.islice(zip(made.offsets, made.conversations, strict=False), count)
    return [(at_s, len(c.turns[0].messages[-1]["content"].split())) for at_s, c in pairs]


@pytest.fixture
def azure(tmp_path: Path) -> str:
    path = tmp_path / "t.csv"
    path.write_text(AZURE)
    return str(path)


def test_a_trace_is_replayed_once_at_its_own_times_or_faster(azure: str) -> None:
    settings: dict[str, Any] = {"dataset": "azure", "dataset_path": azure, "replay": True}
    assert first(load(**settings), 9) == [(0.0, 40), (0.5, 20), (2.0, 1000)]
    assert first(load(**settings, speed=4.0), 9) == [(0.0, 40), (0.125, 20), (0.5, 1000)]
    assert first(load(**settings, max_input_len=100), 9) == [(0.0, 40), (0.5, 20)]
    assert first(load(**settings, scale_lengths=0.5), 9) == [(0.0, 20), (0.5, 10), (2.0, 500)]


def test_a_trace_at_a_rate_of_ones_own_begins_again_at_its_end(azure: str) -> None:
    made = load(dataset="azure", dataset_path=azure, rate=2.0, constant=True, num_requests=5)
    assert first(made, 9) == [(0.0, 40), (0.5, 20), (1.0, 1000), (1.5, 40), (2.0, 20)]


def test_a_limit_that_leaves_nothing_is_refused(azure: str) -> None:
    with pytest.raises(ConfigError, match="has at most 5 prompt tokens"):
        load(dataset="azure", dataset_path=azure, max_input_len=5)


def test_ones_own_lines_are_replayed_in_the_order_of_their_times(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text('{"prompt": "b b", "timestamp_s": 12}\n{"prompt": "a", "timestamp_s": 10}\n')
    settings: dict[str, Any] = {"dataset": "jsonl", "dataset_path": str(path), "replay": True}
    assert first(load(**settings), 9) == [(0.0, 1), (2.0, 2)]
    path.write_text('{"prompt": "b b", "timestamp_s": 12}\n{"prompt": "a"}\n')
    with pytest.raises(ConfigError, match="not every line has a timestamp_s"):
        load(**settings)


def test_prompt_lengths_follow_what_the_endpoint_counts() -> None:
    made = load(Ratio(2.0, 10.0), rate=1.0, input_len="110")
    assert first(made, 1)[0][1] == 50


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"rate": 1.0, "concurrency": 1}, "exclude each other"),
        ({"ramp_to": 3.0, "rate": 1.0}, "ramp_to needs a rate to begin with and a duration"),
        ({"replay": True, "rate": 1.0, "dataset": "azure", "dataset_path": "x"}, "brings its own arrivals"),
        ({"replay": True}, "which random has not"),
        ({"dataset": "sharegpt"}, "needs a dataset_path"),
        ({"duration": 0.0}, r"duration is 0\.0; it must be above 0"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        LoadSettings(**settings)


async def test_a_replayed_trace_arrives_with_its_lengths(azure: str) -> None:
    settings = LoadSettings(dataset="azure", dataset_path=azure, replay=True, speed=20.0, warmup=0)
    async with FakeServer(streamed()) as server:
        run = await measure([server.url], settings, TargetSettings())
    assert [record.due_s for record in run.records] == pytest.approx([0.0, 0.025, 0.1])
    assert [(record.prompt_tokens, record.completion_tokens) for record in run.records] == [(40, 4), (20, 2), (1000, 4)]


async def test_shared_prefixes_of_a_trace_reach_the_server(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    rows = [(0, 600, [1, 2]), (10, 600, [1, 3]), (20, 600, [4, 5])]
    lines = [{"timestamp": t, "input_length": n, "output_length": 1, "hash_ids": ids} for t, n, ids in rows]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    settings = LoadSettings(dataset="mooncake", dataset_path=str(path), replay=True, warmup=0)
    async with FakeServer(streamed()) as server:
        await measure([server.url], settings, TargetSettings())
    a, b, c = (body["messages"][0]["content"].split() for body in server.bodies[-3:])
    assert a[:512] == b[:512]
    assert a[512:] != b[512:]
    assert a[:512] != c[:512]


async def test_the_progress_line_counts_what_there_is() -> None:
    clock = ManualClock()
    bodies = Bodies(TargetSettings(), "m", ignore_eos=False)
    sender = Sender(Client([]), bodies, Patience(1, 1), clock)
    assert "sent 0  open 0" in progress_line(sender, "rate")
    assert "no answer yet" in progress_line(sender, "rate")
    sender.records += [succeeded(0.0, 0.1, 0.5, 10), succeeded(1.0, 0.3, 0.5, 10), failed(1.5)]
    clock.advance(2.0)
    line = progress_line(sender, "rate")
    assert "sent 3" in line
    assert "1.5 req/s  10 tok/s  TTFT p50 200" in line
    assert "failing 1" in line
