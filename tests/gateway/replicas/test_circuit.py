"""The breaker's round, outliers with their cap, and slow start, on a manual clock."""

from __future__ import annotations

from tandem.config.gateway_replicas import CircuitConfig
from tandem.gateway.replicas.circuit import Circuit, find_outliers, start_share
from tandem.gateway.replicas.replica import Replica
from tests.gateway.replicas.helpers import make_pool

CONFIG = CircuitConfig(failures_to_open=3, open_s=5.0, max_open_s=12.0, outlier_min_requests=10, outlier_max_share=0.5)


def one() -> tuple[Replica, Circuit]:
    replica = make_pool("tandem", "http://a:1").replicas[0]
    replica.state = "up"
    return replica, Circuit(replica, CONFIG)


def fail(circuit: Circuit, times: int, now_s: float) -> None:
    for _ in range(times):
        circuit.failed(now_s)


def test_it_opens_after_failures_in_a_row_only() -> None:
    """gw-07: after n failures A is taken out, and retried after the cool-down."""
    replica, circuit = one()
    fail(circuit, 2, 0.0)
    circuit.answered(0.0)
    fail(circuit, 2, 0.0)
    assert circuit.state(0.0) == "closed"
    assert replica.is_available(0.0)
    circuit.failed(1.0)
    assert circuit.state(1.0) == "open"
    assert not replica.is_available(5.9)
    assert replica.is_available(6.0)
    assert circuit.state(6.0) == "half-open"


def test_half_open_lets_one_trial_through() -> None:
    replica, circuit = one()
    fail(circuit, 3, 0.0)
    assert replica.max_in_flight == 1
    circuit.answered(6.0)
    assert circuit.state(6.0) == "closed"
    assert replica.max_in_flight == 128
    assert replica.up_since_s == 6.0, "slow start begins anew"
    assert replica.failures_in_row == 0


def test_the_trial_is_one_beside_what_still_hangs_there() -> None:
    replica, circuit = one()
    replica.in_flight = 40
    fail(circuit, 3, 0.0)
    replica.in_flight = 7
    circuit.tick(4.0)
    assert replica.max_in_flight == 8
    replica.in_flight = 20
    circuit.tick(4.5)
    assert replica.max_in_flight == 8, "it never grows"
    replica.in_flight = 0
    circuit.tick(6.0)
    assert replica.max_in_flight == 8, "nor moves while the trial runs"


def test_a_failed_trial_doubles_the_pause_up_to_the_limit() -> None:
    replica, circuit = one()
    fail(circuit, 3, 0.0)
    pauses = []
    now_s = 0.0
    for _ in range(4):
        pauses.append(replica.ejected_until_s - now_s)
        now_s = replica.ejected_until_s
        circuit.failed(now_s)
    assert pauses == [5.0, 10.0, 12.0, 12.0]


def test_what_was_sent_before_the_opening_is_no_trial() -> None:
    replica, circuit = one()
    fail(circuit, 3, 0.0)
    until_s = replica.ejected_until_s
    circuit.answered(1.0)
    circuit.failed(2.0)
    assert replica.ejected_until_s == until_s
    assert circuit.state(2.0) == "open"


def test_after_quiet_periods_the_pause_is_short_again() -> None:
    replica, circuit = one()
    fail(circuit, 3, 0.0)
    circuit.failed(5.0)
    circuit.answered(20.0)
    circuit.settle(30.0)
    circuit.settle(40.0)
    fail(circuit, 3, 50.0)
    assert replica.ejected_until_s == 55.0


# Outliers.


def fleet(*windows: tuple[int, int, float | None]) -> list[tuple[Replica, Circuit]]:
    """(answers, failures, seconds to the first token) of each replica."""
    pool = make_pool("tandem", *(f"http://r{number}:1" for number in range(len(windows))))
    circuits = []
    for replica, (num_answers, num_failures, latency_s) in zip(pool.replicas, windows, strict=True):
        replica.state = "up"
        circuit = Circuit(replica, CONFIG)
        circuit.window.num_answers, circuit.window.num_failures = num_answers, num_failures
        circuit.window.latency_s = latency_s
        circuits.append((replica, circuit))
    return circuits


def outliers(circuits: list[tuple[Replica, Circuit]], now_s: float = 0.0) -> list[str]:
    return [replica.url for replica in find_outliers(circuits, CONFIG, now_s)]


def test_one_that_fails_far_more_than_the_others() -> None:
    assert outliers(fleet((100, 1, 0.1), (60, 40, 0.1), (100, 0, 0.1))) == ["http://r1:1"]


def test_all_failing_alike_is_no_outlier() -> None:
    """A bad model or bad clients: taking replicas out would make it worse."""
    assert outliers(fleet((50, 50, 0.1), (50, 50, 0.1), (45, 55, 0.1))) == []


def test_one_that_is_far_slower() -> None:
    assert outliers(fleet((50, 0, 0.1), (50, 0, 0.12), (50, 0, 0.7))) == ["http://r2:1"]
    assert outliers(fleet((50, 0, 0.1), (50, 0, 0.12), (50, 0, 0.4))) == []


def test_too_few_requests_say_nothing() -> None:
    assert outliers(fleet((100, 0, 0.1), (1, 8, 9.0), (100, 0, 0.1))) == []


def test_no_more_than_the_allowed_share_worst_first() -> None:
    assert outliers(fleet((100, 0, 0.1), (50, 50, 0.1), (10, 90, 0.1), (100, 0, 0.1), (100, 0, 0.1))) == [
        "http://r2:1", "http://r1:1",
    ]  # fmt: skip
    circuits = fleet((100, 0, 0.1), (50, 50, 0.1), (10, 90, 0.1), (100, 0, 0.1), (100, 0, 0.1))
    circuits[3][0].ejected_until_s = 9.0
    assert outliers(circuits) == ["http://r2:1"], "those already out count"


def test_one_alone_is_never_an_outlier_and_of_two_only_one() -> None:
    assert outliers(fleet((0, 100, 5.0))) == []
    assert outliers(fleet((100, 0, 0.1), (0, 100, 0.1))) == ["http://r1:1"]


def test_slow_start() -> None:
    assert start_share(0.0, 10.0) == 0.1
    assert start_share(5.0, 10.0) == 0.5
    assert start_share(10.0, 10.0) == 1.0
    assert start_share(0.0, 0.0) == 1.0
