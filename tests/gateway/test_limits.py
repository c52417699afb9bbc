"""Rates and budgets of one gateway: reserved on entry, settled by what was used."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.core.clock import ManualClock
from tandem.core.errors import InvalidRequest, Overloaded
from tandem.gateway.context import Caller
from tandem.gateway.limits import StoredLimits
from tandem.gateway.spending import Spending
from tandem.gateway.store.errors import BudgetSpent, RateLimited
from tandem.gateway.store.key_rows import KeyRules
from tandem.gateway.store.wall import WallClock
from tandem.gateway.windows import WINDOW_S, Window
from tests.gateway.rows import NOON, ledger_row

CALLER = Caller(tenant="t", key_id="k")


def limits_of(rules: KeyRules, clock: ManualClock, spending: Spending | None = None) -> StoredLimits:
    return StoredLimits(lambda key_id: rules if key_id == "k" else None, spending, clock)


def december(clock: ManualClock, time: datetime = NOON) -> Spending:
    start_s = clock.now()
    return Spending(clock, WallClock(clock, lambda: time.timestamp() + clock.now() - start_s))


def test_a_token_limit_under_simultaneous_requests() -> None:
    """Case gw-06: of five that come together one is admitted; no minute uses more than the limit."""
    clock = ManualClock(1000.0)
    limits = limits_of(KeyRules(tokens_per_minute=100), clock)
    admitted, refusals = 0, []
    for _ in range(5):
        try:
            limits.take(CALLER, 20, 60, clock.now())
            admitted += 1
        except RateLimited as error:
            refusals.append(error)
    assert admitted == 1
    assert {(error.status, error.code) for error in refusals} == {(429, "rate_limit_exceeded")}
    assert all(1.0 <= error.retry_after_s <= 61.0 for error in refusals)
    assert limits.reserved_tokens("k") == 80
    limits.settle(CALLER, 80, 80, 10)
    assert (limits.reserved_tokens("k"), limits.used_tokens("k")) == (0, 80)
    used_at: list[float] = [clock.now()]
    for _ in range(60):
        clock.advance(1.0)
        try:
            limits.take(CALLER, 20, 60, clock.now())
        except RateLimited:
            continue
        limits.settle(CALLER, 80, 80, 10)
        used_at.append(clock.now())
    assert all(later - earlier >= WINDOW_S for earlier, later in pairwise(used_at))
    clock.advance(2.0)
    limits.take(CALLER, 20, 60, clock.now())


def test_the_wait_it_names_is_enough() -> None:
    clock = ManualClock(10.5)
    limits = limits_of(KeyRules(tokens_per_minute=100), clock)
    limits.take(CALLER, 60, 0, clock.now())
    limits.settle(CALLER, 60, 60, 0)
    clock.advance(20.0)
    limits.take(CALLER, 40, 0, clock.now())
    limits.settle(CALLER, 40, 40, 0)
    with pytest.raises(RateLimited) as refusal:
        limits.take(CALLER, 50, 0, clock.now())
    wait_s = refusal.value.retry_after_s
    assert 40.0 <= wait_s <= 41.0
    clock.advance(wait_s)
    limits.take(CALLER, 50, 0, clock.now())


def test_less_used_than_reserved_makes_room_at_once() -> None:
    clock = ManualClock()
    limits = limits_of(KeyRules(tokens_per_minute=100), clock)
    limits.take(CALLER, 20, 60, clock.now())
    limits.settle(CALLER, 80, 25, 0)
    limits.take(CALLER, 15, 60, clock.now())


def test_a_long_request_stays_reserved_past_its_minute() -> None:
    clock = ManualClock()
    limits = limits_of(KeyRules(tokens_per_minute=100), clock)
    limits.take(CALLER, 20, 60, clock.now())
    clock.advance(600.0)
    with pytest.raises(RateLimited):
        limits.take(CALLER, 20, 60, clock.now())


def test_requests_left_by_their_clients_give_everything_back() -> None:
    """Case ld-01: after 20 streams that were closed early nothing is reserved, and what is spent is the rows' sum."""
    clock = ManualClock()
    spending = december(clock)
    rules = KeyRules(tokens_per_minute=10_000, budget_micros=1000)
    limits = limits_of(rules, clock, spending)
    for _ in range(20):
        limits.take(CALLER, 20, 60, clock.now())
    assert limits.reserved_tokens("k") == 1600
    for number in range(20):
        limits.settle(CALLER, 80, 30, 40)
        spending.add(ledger_row(f"r{number}", cost_micros=40, status="aborted"))
    assert (limits.reserved_tokens("k"), limits.used_tokens("k")) == (0, 600)
    assert spending.micros("k") == 800


def test_requests_by_the_minute() -> None:
    clock = ManualClock(0.5)
    limits = limits_of(KeyRules(requests_per_minute=3), clock)
    for _ in range(3):
        limits.take(CALLER, 1, 1, clock.now())
    with pytest.raises(RateLimited, match="3 requests a minute"):
        limits.take(CALLER, 1, 1, clock.now())
    clock.advance(61.0)
    limits.take(CALLER, 1, 1, clock.now())


def test_a_request_refused_for_one_limit_counts_for_none() -> None:
    clock = ManualClock()
    limits = limits_of(KeyRules(requests_per_minute=2, tokens_per_minute=100), clock)
    limits.take(CALLER, 90, 0, clock.now())
    for _ in range(5):
        with pytest.raises(RateLimited, match="tokens"):
            limits.take(CALLER, 20, 0, clock.now())
    limits.take(CALLER, 10, 0, clock.now())


def test_what_can_never_fit_is_no_matter_of_waiting() -> None:
    clock = ManualClock()
    limits = limits_of(KeyRules(tokens_per_minute=100), clock)
    with pytest.raises(InvalidRequest, match="lower max_tokens"):
        limits.take(CALLER, 20, 81, clock.now())


def test_a_budget_ends_with_the_month() -> None:
    clock = ManualClock()
    spending = december(clock)
    limits = limits_of(KeyRules(budget_micros=100), clock, spending)
    limits.take(CALLER, 10, 10, clock.now())
    limits.settle(CALLER, 20, 20, 100)
    spending.add(ledger_row("r", cost_micros=100))
    with pytest.raises(BudgetSpent) as refusal:
        limits.take(CALLER, 10, 10, clock.now())
    assert refusal.value.code == "insufficient_quota"
    assert isinstance(refusal.value, Overloaded)
    rest_s = (datetime(2027, 1, 1, tzinfo=UTC) - NOON).total_seconds()
    assert refusal.value.retry_after_s == pytest.approx(rest_s)
    clock.advance(rest_s)
    limits.take(CALLER, 1, 1, clock.now())


def test_what_runs_counts_against_the_budget_at_what_tokens_have_cost() -> None:
    clock = ManualClock()
    spending = december(clock)
    limits = limits_of(KeyRules(budget_micros=100), clock, spending)
    limits.take(CALLER, 5, 5, clock.now())
    limits.settle(CALLER, 10, 10, 20)
    spending.add(ledger_row("r", cost_micros=20))
    limits.take(CALLER, 10, 10, clock.now())
    with pytest.raises(BudgetSpent):
        limits.take(CALLER, 10, 11, clock.now())
    limits.settle(CALLER, 20, 0, 0)
    limits.take(CALLER, 10, 11, clock.now())


def test_keys_without_rules_and_anonymous_callers_pass() -> None:
    limits = limits_of(KeyRules(tokens_per_minute=1), ManualClock())
    for _ in range(3):
        limits.take(Caller(), 10_000, 10_000, 0.0)
        limits.settle(Caller(), 20_000, 5, 5)


@given(st.lists(st.tuples(st.floats(0.0, 40.0), st.integers(1, 60)), min_size=1, max_size=60))
def test_no_sixty_seconds_ever_hold_more_than_the_limit(steps: list[tuple[float, int]]) -> None:
    clock = ManualClock()
    window = Window()
    used: list[tuple[float, int]] = []
    for wait_s, amount in steps:
        clock.advance(wait_s)
        if window.occupied(clock.now()) + amount <= 100:
            window.use(amount, clock.now())
            used.append((clock.now(), amount))
    for start_s, _ in used:
        assert sum(amount for at_s, amount in used if start_s <= at_s < start_s + WINDOW_S) <= 100
    clock.advance(WINDOW_S + 1)
    assert window.occupied(clock.now()) == 0
