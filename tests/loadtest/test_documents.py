"""Reports as files: JSON that comes back, CSV, one page that needs nothing, and the comparison of two."""

from __future__ import annotations

import csv
import io
import random
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tandem.loadtest.bench import Run
from tandem.loadtest.compare import compare, text_comparison, warnings
from tandem.loadtest.document import Document, csv_text, make_document, read_json, write_json
from tandem.loadtest.errors import LoadTestError
from tandem.loadtest.html import html_report
from tandem.loadtest.record import Record
from tandem.loadtest.report import text_sweep
from tandem.loadtest.saturation import Knee
from tandem.loadtest.settings import LoadSettings
from tandem.loadtest.svg import Chart, Series, stacked_bars
from tests.loadtest.recorded import failed, succeeded


def records(seed: int, scale: float = 1.0, count: int = 300) -> list[Record]:
    rng = random.Random(seed)
    return [succeeded(0.1 * k, scale * rng.uniform(0.1, 0.3), scale * rng.uniform(0.8, 1.2), 20) for k in range(count)]


def document(*runs: Run, knee: Knee | None = None) -> Document:
    return make_document(runs, urls=["http://h:1"], model="<m>", endpoint="chat", goals={"ttft": 250.0}, knee=knee)


def one(seed: int, scale: float = 1.0) -> Document:
    return document(Run(LoadSettings(rate=10.0), records(seed, scale)))


def swept() -> Document:
    runs = [Run(LoadSettings(rate=rate), records(3, rate, 50)) for rate in (1.0, 2.0, 4.0)]
    return document(*runs, knee=Knee(rate=2.0, broke_at=4.0, why="only 3% met ttft:250"))


def test_a_document_comes_back_from_its_file(tmp_path: Path) -> None:
    written = swept()
    write_json(tmp_path / "r.json", written)
    assert read_json(tmp_path / "r.json") == written


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"version": 1}'])
def test_a_file_that_is_no_report_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(LoadTestError, match="is no report of tandem bench"):
        read_json(tmp_path / "r.json")


def test_csv_has_a_line_for_each_request_with_its_fate() -> None:
    run = Run(LoadSettings(concurrency=2), [succeeded(0, 0.1, 0.2, 3), failed(0.1, problem='a "quoted", odd one')])
    rows = list(csv.DictReader(io.StringIO(csv_text(document(run)))))
    assert [row["status"] for row in rows] == ["ok", "error"]
    assert rows[0]["ttft_ms"] == "100.0"
    assert rows[1]["problem"] == 'a "quoted", odd one'
    assert rows[1]["ttft_ms"] == ""


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("found", [one(1), swept()], ids=["one run", "sweep"])
def test_the_page_is_whole_and_needs_nothing_from_elsewhere(found: Document) -> None:
    page = html_report(found)
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert tags.links == []
    assert "script" not in tags.seen
    assert re.search(r"https?://(?!h:1)", page) is None
    assert "&lt;m&gt;" in page
    assert "<m>" not in page


def test_the_page_of_a_sweep_has_the_plots_that_people_expect() -> None:
    page = html_report(swept())
    titles = ["Latency over rate", "Token throughput over concurrency", "Latency over throughput", "at the peak"]
    for title in [*titles, "Time to first token over the run", "The knee: 2 requests per second held"]:
        assert title in page
    assert 'class="knee"' in page


def test_a_partial_measurement_says_so_everywhere() -> None:
    run = Run(LoadSettings(rate=1.0), records(1, count=5), is_partial=True)
    assert "PARTIAL" in html_report(document(run))
    assert document(run).partial
    assert "PARTIAL" in text_sweep(document(run))


def test_charts_place_their_points_where_the_axes_say() -> None:
    svg = Chart("t", "x", "y", [Series("a", [(0.0, 0.0), (10.0, 5.0)])]).render()
    assert 'points="64.0,274.0 544.0,34.0"' in svg
    log = Chart("t", "x", "y", [Series("a", [(1.0, 1.0), (10.0, 1.0), (100.0, 1.0)])], is_log_x=True).render()
    assert 'points="64.0,' in log
    assert " 304.0," in log  # ten is halfway from one to a hundred
    assert Chart("t", "x", "y", [Series("a", [])]).render() == ""
    bars = stacked_bars("t", "ms", ("p", "q"), [("a", (1.0, 3.0))])
    assert [float(w) for w in re.findall(r'width="([\d.]+)" height="18"', bars)] == [90.0, 270.0]


def test_two_runs_of_the_same_are_noise() -> None:
    ((_, differences),) = compare(one(1), one(2))
    assert [d.name for d in differences if not d.is_noise] == []


def test_a_real_difference_is_found_and_said() -> None:
    groups = compare(one(1), one(2, scale=1.3))
    found = {d.name: d for d in groups[0][1]}
    slower = found["Mean TTFT (ms)"]
    assert not slower.is_noise
    assert slower.change == pytest.approx(0.3, abs=0.08)
    assert found["Request throughput (req/s)"].is_noise
    assert re.search(r"Mean TTFT .*REAL", text_comparison(groups, []))


def test_runs_are_paired_by_their_load() -> None:
    assert [load for load, _ in compare(swept(), swept())] == ["1 requests/s", "2 requests/s", "4 requests/s"]
    with pytest.raises(LoadTestError, match="no load in common"):
        compare(swept(), document(*(Run(LoadSettings(rate=9.0), records(1)) for _ in range(2))))


def test_an_unfair_comparison_is_named() -> None:
    partial = document(Run(LoadSettings(rate=20.0), records(1), is_partial=True))
    notes = warnings(one(1), partial)
    assert "The workloads differ: rate is 10.0 and 20.0." in notes
    assert any("The second is partial" in note for note in notes)
