"""Figures over records: who is in them, and that they are exact."""

from __future__ import annotations

import random

import pytest

from tandem.loadtest.goals import meets, parse_goals
from tandem.loadtest.record import Record
from tandem.loadtest.report import text_report
from tandem.loadtest.statistics import bootstrap, figures, interval, mean, percentile, trend
from tandem.loadtest.summary import summarise
from tests.loadtest.recorded import failed, succeeded


def mixed() -> list[Record]:
    """60 served in 1.0 s with 20 tokens, 30 refused at once, 5 broken in mid-stream, 5 still running at the end."""
    records = [succeeded(0.01 * k, 0.05, 1.0, 20) for k in range(60)]
    records += [failed(0.6 + 0.01 * k) for k in range(30)]
    broken = [failed(0.9 + 0.01 * k, 0.5, "an error in mid-stream: died") for k in range(5)]
    for record in broken:
        record.chunks = [record.sent_s + 0.1, record.sent_s + 0.2]
        record.first_s = record.chunks[0]
    unfinished = [Record(0.95, 10, 20, sent_s=0.95, end_s=2.0, chunks=[1.0, 1.1], first_s=1.0) for _ in range(5)]
    return [*records, *broken, *unfinished]


def test_failed_and_unfinished_requests_are_counted_but_not_timed() -> None:
    """lt-02: 60 served, 35 failed, 5 incomplete; latencies are of the 60, and the failures stand beside them."""
    summary = summarise(mixed(), goals=parse_goals(["e2el:2000"]))
    assert (summary.ok, summary.errors, summary.incomplete, summary.total) == (60, 35, 5, 100)
    assert summary.error_rate == pytest.approx(0.35)
    for found in (summary.ttft_ms, summary.tpot_ms, summary.e2el_ms):
        assert found is not None
        assert found.count == 60
    assert summary.e2el_ms is not None
    assert [summary.e2el_ms.median, summary.e2el_ms.p99] == pytest.approx([1000, 1000])
    assert summary.e2el_with_failures_ms == {"p50": pytest.approx(1000), "p90": None, "p99": None}
    assert summary.goodput_share == pytest.approx(0.6)
    assert summary.output_tokens == 60 * 20
    assert summary.partial_tokens == 5 * 2 + 5 * 2
    assert summary.problems == {"HTTP 503: full": 30, "an error in mid-stream: died": 5}


def test_the_report_says_on_one_page_what_failed_and_whom_the_figures_are_of() -> None:
    """lt-02: nothing of it is out of sight."""
    text = text_report(summarise(mixed()), [])
    for expected in (
        "Failed requests:                           35",
        "Incomplete requests:                       5",
        "Error rate (%):                            35.00",
        "P90 E2EL, failures as infinite (ms):       infinite",
        "Tokens of failed and incomplete requests:  20",
        "of the successful requests only",
    ):
        assert expected in text


def test_rates_are_over_the_whole_duration() -> None:
    summary = summarise([succeeded(0.0, 0.5, 1.0, 11), succeeded(3.0, 0.5, 1.0, 11)])
    assert summary.duration_s == pytest.approx(4.0)
    assert summary.request_throughput == pytest.approx(0.5)
    assert summary.output_throughput == pytest.approx(22 / 4)
    assert summary.total_throughput == pytest.approx(42 / 4)
    assert summary.peak_concurrency == 1
    assert summary.mean_concurrency == pytest.approx(0.5)


def test_peaks_are_of_overlapping_requests_and_of_single_seconds() -> None:
    summary = summarise([succeeded(0.0, 0.1, 0.9, 9), succeeded(0.5, 0.1, 0.4, 4), succeeded(2.0, 0.1, 0.9, 9)])
    assert summary.peak_concurrency == 2
    assert summary.peak_output_throughput == 13


def test_a_generator_that_was_late_is_marked_and_one_in_time_is_not() -> None:
    records = [succeeded(0.1 * k, 0.05, 0.1, 2) for k in range(50)]
    assert not summarise(records, is_open=True).has_lagged
    for record in records[-5:]:
        record.due_s = record.sent_s - 0.2
    late = summarise(records, is_open=True)
    assert late.has_lagged
    assert "LAGGED" in text_report(late, [])
    assert not summarise(records, is_open=False).has_lagged  # in a closed loop nothing is due


def test_goals_are_read_and_applied() -> None:
    goals = parse_goals(["ttft:200", "tpot:50,e2el:1000"])
    assert goals == {"ttft": 200, "tpot": 50, "e2el": 1000}
    assert meets(succeeded(0, 0.2, 0.9, 15), goals)
    assert not meets(succeeded(0, 0.3, 0.9, 15), goals)
    assert not meets(succeeded(0, 0.1, 0.9, 5), goals)
    assert meets(succeeded(0, 0.1, 0.1, 1), goals)  # one token has no time per output token
    assert not meets(failed(0), goals)


def test_percentiles_are_exact() -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], 50) == 2.5
    assert percentile([1.0, 2.0, 3.0, 4.0], 99) == pytest.approx(3.97)
    assert percentile([7.0], 99) == 7.0
    found = figures([3.0, 1.0, 2.0])
    assert found is not None
    assert (found.min, found.median, found.max, found.mean) == (1.0, 2.0, 3.0, 2.0)


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    rng = random.Random(5)
    held = 0
    for k in range(60):
        found = figures([rng.gauss(10, 2) for _ in range(100)], seed=k)
        assert found is not None
        assert found.mean_ci is not None
        held += found.mean_ci.low <= 10 <= found.mean_ci.high
    assert 50 <= held <= 60


def test_intervals_of_alike_neighbours_are_wider_than_of_independent_ones() -> None:
    rng = random.Random(1)
    values = [float(level) for level in (rng.gauss(0, 1) for _ in range(40)) for _ in range(25)]
    shuffled = rng.sample(values, len(values))
    wide, narrow = (interval(bootstrap(v, (mean,), 1)[0]) for v in (values, shuffled))
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)


def test_a_seed_decides_the_interval() -> None:
    values = [float(k % 7) for k in range(50)]
    assert figures(values, seed=1) == figures(values, seed=1)
    assert figures(values, seed=1) != figures(values, seed=2)


def test_a_trend_is_told_from_noise() -> None:
    times = [float(k) for k in range(50)]
    rng = random.Random(2)
    rise, errors = trend(times, [k + rng.gauss(0, 3) for k in range(50)])
    assert rise == pytest.approx(49, abs=5)
    assert errors > 10
    assert abs(trend(times, [rng.gauss(0, 3) for _ in range(50)])[1]) < 3
