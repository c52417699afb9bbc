"""When a load is too much, and how the search finds where that begins."""

from __future__ import annotations

import pytest

from tandem.loadtest.record import Record
from tandem.loadtest.saturation import Knee, Verdict, find_knee, is_over_saturated, judge
from tandem.loadtest.sweep import Search
from tests.loadtest.recorded import failed, succeeded

GOALS = {"ttft": 200.0}


def queue(rate: float, capacity: float, seconds: float = 30.0) -> list[Record]:
    """Requests of one server that takes `capacity` a second, one after the other."""
    found, free_s = [], 0.0
    for k in range(round(rate * seconds)):
        sent_s = k / rate
        free_s = max(free_s, sent_s) + 1 / capacity
        found.append(succeeded(sent_s, free_s - sent_s, free_s - sent_s + 0.05, 5))
    return found


def test_a_queue_that_grows_all_through_the_run_is_over_saturated() -> None:
    assert is_over_saturated(queue(rate=15, capacity=10))
    assert not is_over_saturated(queue(rate=8, capacity=10))


def test_slow_answers_alone_are_no_saturation() -> None:
    slow = [succeeded(0.1 * k, 3.0, 5.0, 5) for k in range(100)]
    assert not is_over_saturated(slow[30:])


def test_goals_hold_where_nine_of_ten_of_all_sent_meet_them() -> None:
    good = [succeeded(0.1 * k, 0.1, 0.2, 5) for k in range(95)]
    assert judge([*good, *(failed(9.5) for _ in range(5))], GOALS) == Verdict(True)
    verdict = judge([*good[:80], *(succeeded(9, 0.5, 0.9, 5) for _ in range(20))], GOALS)
    assert not verdict.holds
    assert "only 80% of the requests met ttft:200" in verdict.why


def test_failures_break_a_load_with_or_without_goals() -> None:
    records = [*(succeeded(0.1 * k, 0.1, 0.2, 5) for k in range(50)), *(failed(5.0) for _ in range(50))]
    assert "50% of the requests failed" in judge(records, {}).why
    assert "50% of the requests failed" in judge(records, GOALS).why


def test_a_rate_that_holds_above_one_that_broke_does_not_count() -> None:
    verdicts = [Verdict(True), Verdict(False, "slow"), Verdict(True)]
    assert find_knee([1.0, 2.0, 3.0], verdicts) == Knee(rate=1.0, broke_at=2.0, why="slow")


@pytest.mark.parametrize("capacity", [0.3, 3.0, 10.0, 47.0])
def test_the_search_brackets_the_capacity_from_any_start(capacity: float) -> None:
    search = Search(1.0)
    for rate in search:
        search.tell(rate, Verdict(rate <= capacity, "too much"))
    knee = search.knee
    assert knee.broke_at is not None
    assert knee.rate <= capacity < knee.broke_at
    assert knee.broke_at / knee.rate < 1.25
    assert len(search.rates) < 14


def test_a_search_that_nothing_breaks_ends() -> None:
    search = Search(1.0, max_doublings=5)
    for rate in search:
        search.tell(rate, Verdict(True))
    assert search.knee == Knee(rate=16.0, broke_at=None)


def test_a_search_that_nothing_satisfies_ends() -> None:
    search = Search(1.0, max_doublings=5)
    for rate in search:
        search.tell(rate, Verdict(False, "dead"))
    assert search.knee.rate == 0.0
