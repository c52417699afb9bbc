"""Arrival processes: their rates, their shapes, and that a seed decides them."""

from __future__ import annotations

import itertools
import statistics

import pytest

from tandem.traffic import arrivals
from tandem.traffic.arrivals import Step


def gaps(offsets: list[float]) -> list[float]:
    return [b - a for a, b in itertools.pairwise(offsets)]


def take(count: int, offsets: object) -> list[float]:
    return list(itertools.islice(offsets, count))  # type: ignore[call-overload]


def test_constant_arrivals_are_even() -> None:
    assert take(4, arrivals.constant(2.0)) == [0.0, 0.5, 1.0, 1.5]


@pytest.mark.parametrize(("burstiness", "variation"), [(1.0, 1.0), (0.25, 2.0), (4.0, 0.5)])
def test_gamma_arrivals_have_the_rate_and_the_burstiness_that_was_asked_for(
    burstiness: float, variation: float
) -> None:
    between = gaps(take(20_001, arrivals.gamma(5.0, burstiness, seed=3)))
    assert statistics.mean(between) == pytest.approx(0.2, rel=0.05)
    # The coefficient of variation of a gamma law is 1/√shape.
    assert statistics.pstdev(between) / statistics.mean(between) == pytest.approx(variation, rel=0.05)


def test_a_seed_decides_the_arrivals() -> None:
    assert take(9, arrivals.poisson(1, 1)) == take(9, arrivals.poisson(1, 1))
    assert take(9, arrivals.poisson(1, 1)) != take(9, arrivals.poisson(1, 2))


@pytest.mark.parametrize(("start", "end"), [(1.0, 9.0), (9.0, 1.0), (5.0, 5.0)])
def test_a_ramp_sends_what_the_integral_of_its_rate_says(start: float, end: float) -> None:
    found = take(70, arrivals.ramp(start, end, 10.0))
    assert found == sorted(found)
    assert sum(at_s < 10 for at_s in found) == 50
    halfway = 5 * (start + (start + end) / 2) / 2
    assert sum(at_s < 5 for at_s in found) == pytest.approx(halfway, abs=1)
    assert gaps(found)[-1] == pytest.approx(1 / end)  # and then stays at its end


def test_steps_follow_each_other_without_a_pause() -> None:
    found = list(arrivals.steps([Step(100, 10), Step(10, 10)], 1.0, seed=1))
    assert found == sorted(found)
    assert sum(at_s < 10 for at_s in found) == pytest.approx(1000, rel=0.1)
    assert sum(10 <= at_s < 20 for at_s in found) == pytest.approx(100, rel=0.3)
    assert max(found) < 20


def test_a_replay_runs_at_any_speed() -> None:
    assert list(arrivals.replay([0.0, 1.0, 4.0], 2.0)) == [0.0, 0.5, 2.0]
    assert list(arrivals.until(arrivals.constant(1.0), 2.5)) == [0.0, 1.0, 2.0]
