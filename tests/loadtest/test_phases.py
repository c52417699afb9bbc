"""What a stress test concludes from its records."""

from __future__ import annotations

import pytest

from tandem.loadtest import phases
from tandem.loadtest.record import Record
from tandem.loadtest.stress import PHASES, make_plan
from tandem.loadtest.stress_settings import StressSettings
from tandem.traffic.arrivals import Step
from tests.loadtest.recorded import failed, succeeded

GOALS = {"ttft": 200.0}
PLAN = [Step(10, 10), Step(15, 10), Step(5, 10)]


def records(slow_until_s: float) -> list[Record]:
    """Good at first; from second 10 (the overload) on too slow, until `slow_until_s`."""
    found = []
    for k in range(300):
        at_s = 0.1 * k
        ttft_s = 2.0 if 10 <= at_s < slow_until_s else 0.1
        found.append(succeeded(at_s, ttft_s, ttft_s + 0.1, 5))
    return found


def test_requests_belong_to_the_phase_in_which_they_were_due() -> None:
    found = phases.split(records(10), PHASES, PLAN, GOALS)
    assert [(phase.name, phase.total) for phase in found] == [(name, 100) for name in PHASES]
    assert [phase.goodput for phase in found] == pytest.approx([10.0, 10.0, 10.0])


@pytest.mark.parametrize(("slow_until_s", "recovery"), [(10, 0.0), (20, 0.0), (23, 3.0), (99, None)])
def test_recovery_is_the_time_until_the_goals_are_met_again(slow_until_s: float, recovery: float | None) -> None:
    found = phases.recovery_s(records(slow_until_s), 20.0, GOALS)
    assert found == (None if recovery is None else pytest.approx(recovery, abs=0.11))


def test_one_straggler_does_not_undo_a_recovery() -> None:
    found = records(22)
    found[280].first_s = found[280].sent_s + 5
    assert phases.recovery_s(found, 20.0, GOALS) == pytest.approx(2.0, abs=0.11)


def test_a_collapse_fails_and_shedding_load_does_not() -> None:
    """Past the knee those who can be served must be: refusing the rest at once is how."""
    at_knee, beyond, _ = phases.split(records(20), PHASES, PLAN, GOALS)
    assert not phases.check_collapse(at_knee, beyond, 0.7).passed
    shedding = [r if k % 3 else failed(r.sent_s) for k, r in enumerate(records(10))]
    at_knee, beyond, _ = phases.split(shedding, PHASES, PLAN, GOALS)
    assert phases.check_collapse(at_knee, beyond, 0.7).passed
    assert beyond.errors == 33
    assert beyond.problems == {"HTTP 503: full": 33}


def test_the_plan_goes_up_and_down_around_the_knee() -> None:
    plan = make_plan(10.0, StressSettings(hold=1, overload=2, recover=3))
    assert plan == [Step(10.0, 1), Step(15.0, 2), Step(5.0, 3)]


def test_memory_that_grows_to_the_end_is_a_leak_and_a_cache_that_fills_is_none() -> None:
    leak = phases.growth([(float(t), 1e9 + 2e6 * t) for t in range(100)])
    assert not phases.check_memory(leak, 0.05).passed
    cache = phases.growth([(float(t), 1e9 + 5e8 * min(t, 20) / 20) for t in range(100)])
    assert phases.check_memory(cache, 0.05).passed
    noise = phases.growth([(float(t), 1e9 + 1e8 * (t * 7919 % 13)) for t in range(100)])
    assert phases.check_memory(noise, 0.05).passed
    assert "not told" in phases.check_memory(phases.growth([]), 0.05).detail


def test_errors_in_the_soak_are_held_against_their_limit() -> None:
    soak = [*(succeeded(0.1 * k, 0.1, 0.2, 5) for k in range(99)), failed(9.9)]
    assert phases.check_errors(soak, 0.01).passed
    assert not phases.check_errors(soak, 0.005).passed
    assert not phases.check_recovery(None, 10).passed
    assert not phases.check_recovery(11.0, 10).passed
