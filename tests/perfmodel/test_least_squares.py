"""The fit finds what made the data, forgets what is over, and never says that work takes less than no time."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.perfmodel.least_squares import NonNegativeLeastSquares


def test_coefficients_are_recovered_exactly_without_noise() -> None:
    fit, rng = NonNegativeLeastSquares([1.0, 1.0, 1.0], forgetting=1.0), random.Random(1)
    for _ in range(500):
        x = [1.0, rng.uniform(0, 100), rng.uniform(0, 10)]
        fit.update(x, 3.0 * x[0] + 0.5 * x[1] + 2.0 * x[2])
    assert fit.coefficients == pytest.approx([3.0, 0.5, 2.0], rel=1e-3)


def test_before_any_observation_it_is_the_prior() -> None:
    fit = NonNegativeLeastSquares([2.0, 0.25])
    assert fit.coefficients == [2.0, 0.25]
    assert fit.predict([1.0, 4.0]) == 3.0


def test_what_is_never_observed_keeps_its_prior() -> None:
    fit = NonNegativeLeastSquares([1.0, 1.0, 7.0])
    for n in range(1, 200):
        fit.update([1.0, n % 17, 0.0], 4.0 + 0.1 * (n % 17))
    assert fit.coefficients[2] == pytest.approx(7.0)
    assert fit.coefficients[:2] == pytest.approx([4.0, 0.1], rel=0.05)


def test_features_that_always_come_together_share_what_they_explain() -> None:
    """A decode step has as many tokens as sequences: only their sum can be known, and it must be right."""
    fit = NonNegativeLeastSquares([1.0, 1.0, 1.0])
    for n in range(300):
        fit.update([1.0, n % 32 + 1, n % 32 + 1], 5.0 + 0.3 * (n % 32 + 1))
    base, token, sequence = fit.coefficients
    assert base == pytest.approx(5.0, rel=0.02)
    assert token + sequence == pytest.approx(0.3, rel=0.05)
    assert min(token, sequence) > 0


def test_old_observations_fade() -> None:
    fit = NonNegativeLeastSquares([1.0], forgetting=0.9)
    for _ in range(100):
        fit.update([1.0], 10.0)
    for _ in range(50):
        fit.update([1.0], 2.0)
    assert fit.coefficients[0] == pytest.approx(2.0, rel=0.05)


def test_a_short_step_counts_as_much_as_a_long_one() -> None:
    fit = NonNegativeLeastSquares([1.0, 1.0], forgetting=1.0)
    for _ in range(200):
        fit.update([1.0, 1.0], 0.011)
        fit.update([1.0, 1000.0], 1.3)  # 30 % off the line of the others
        fit.update([1.0, 1000.0], 0.7)
    assert fit.predict([1.0, 1.0]) == pytest.approx(0.011, rel=0.02)


@given(st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 1e2), st.floats(1e-5, 1e3)), max_size=60))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_coefficients_are_never_negative_nor_infinite(rows: list[tuple[float, float, float]]) -> None:
    fit = NonNegativeLeastSquares([1e-2, 1e-4, 1e-3])
    for tokens, seqs, measured in rows:
        fit.update([1.0, tokens, seqs], measured)
    assert all(0 <= c < 1e6 for c in fit.coefficients), fit.coefficients
