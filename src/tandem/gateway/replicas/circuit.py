"""When a replica that is up gets no requests all the same: the circuit breaker of each, and outliers among a pool's.

Pure: time comes in, and what is decided is written on the replica (`ejected_until_s`, `trial_limit`, `up_since_s`),
where the data path and the policies look. A breaker goes round like this:

    closed ── failures in a row ──> open ── time ──> half open (one trial) ── answer ──> closed, slow start
                                     ^                        │
                                     └── twice as long ── failure
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from tandem.config.gateway_replicas import CircuitConfig
from tandem.gateway.replicas.replica import Replica

CircuitState = Literal["closed", "open", "half-open"]
_LATENCY_PACE = 0.2


@dataclass(slots=True)
class Window:
    """What became of a replica's requests since outliers were last looked for."""

    num_answers: int = 0
    num_failures: int = 0
    latency_s: float | None = None
    """Smoothed; to the first token of streams."""

    @property
    def num_requests(self) -> int:
        return self.num_answers + self.num_failures

    @property
    def error_rate(self) -> float:
        return self.num_failures / self.num_requests if self.num_requests else 0.0


class Circuit:
    """One replica's. `answered` and `failed` are told of every request; `tick` now and then."""

    def __init__(self, replica: Replica, config: CircuitConfig) -> None:
        self.window = Window()
        self._replica = replica
        self._config = config
        self._times_opened = 0

    def state(self, now_s: float) -> CircuitState:
        if self._replica.trial_limit is None:
            return "closed"
        return "open" if now_s < self._replica.ejected_until_s else "half-open"

    def answered(self, now_s: float, latency_s: float | None = None) -> None:
        replica, window = self._replica, self.window
        replica.failures_in_row = 0
        replica.last_answer_s = now_s
        window.num_answers += 1
        if latency_s is not None:
            before = window.latency_s
            window.latency_s = latency_s if before is None else before + _LATENCY_PACE * (latency_s - before)
        # While it is open, what was sent before may still come; that is no trial.
        if self.state(now_s) == "half-open":
            self._close(now_s)

    def failed(self, now_s: float) -> None:
        replica = self._replica
        replica.failures_in_row += 1
        self.window.num_failures += 1
        state = self.state(now_s)
        if state == "half-open" or (state == "closed" and replica.failures_in_row >= self._config.failures_to_open):
            self.open(now_s)

    def open(self, now_s: float) -> None:
        """Also what ejects an outlier."""
        config = self._config
        pause_s = min(config.max_open_s, config.open_s * 2.0 ** min(self._times_opened, 30))
        self._times_opened += 1
        self._replica.ejected_until_s = now_s + pause_s
        self._replica.trial_limit = self._replica.in_flight + 1

    def tick(self, now_s: float) -> None:
        """Requests from before the ejection end in the meantime; the trial is one beside those that are left."""
        replica = self._replica
        if replica.trial_limit is not None and now_s < replica.ejected_until_s:
            replica.trial_limit = min(replica.trial_limit, replica.in_flight + 1)

    def reset(self) -> None:
        """The engine is another now: restarted, or back from being down."""
        replica = self._replica
        replica.failures_in_row = 0
        replica.ejected_until_s = 0.0
        replica.trial_limit = None
        self._times_opened = 0
        self.window = Window()

    def _close(self, now_s: float) -> None:
        replica = self._replica
        replica.trial_limit = None
        replica.ejected_until_s = 0.0
        replica.up_since_s = now_s
        self.window = Window()

    def settle(self, now_s: float) -> None:
        """After a period without an ejection: the next one is short again."""
        if self.state(now_s) == "closed" and self._replica.failures_in_row == 0:
            self._times_opened = max(0, self._times_opened - 1)


def find_outliers(circuits: Sequence[tuple[Replica, Circuit]], config: CircuitConfig, now_s: float) -> list[Replica]:
    """Of one pool's replicas that are up: those that fail or dawdle far more than the others, worst first, and no more
    than the allowed share together with those ejected already. One alone is never an outlier."""
    up = [(replica, circuit) for replica, circuit in circuits if replica.state == "up"]
    num_allowed = int(len(up) * config.outlier_max_share)
    if len(up) > 1 and config.outlier_max_share > 0:
        num_allowed = max(1, num_allowed)
    num_allowed -= sum(not replica.is_available(now_s) for replica, _ in up)
    judged = [
        (replica, circuit.window)
        for replica, circuit in up
        if circuit.state(now_s) == "closed" and circuit.window.num_requests >= config.outlier_min_requests
    ]
    if len(judged) < 2 or num_allowed < 1:
        return []
    found = [(badness, replica) for replica, window in judged if (badness := _badness(window, judged, config)) > 1]
    found.sort(key=lambda one: one[0], reverse=True)
    return [replica for _, replica in found[:num_allowed]]


def _badness(window: Window, judged: Sequence[tuple[Replica, Window]], config: CircuitConfig) -> float:
    """Above 1: an outlier."""
    others = [other for _, other in judged if other is not window]
    rate = sum(other.num_failures for other in others) / sum(other.num_requests for other in others)
    by_errors = (window.error_rate - rate) / config.outlier_error_rate
    latencies = [other.latency_s for other in others if other.latency_s is not None]
    usual_s = median(latencies) if latencies else 0.0
    if window.latency_s is None or usual_s <= 0:
        return by_errors
    return max(by_errors, window.latency_s / (usual_s * config.outlier_latency_factor))


def start_share(up_for_s: float, slow_start_s: float, least: float = 0.1) -> float:
    """Of its full share, what a fresh replica gets: its caches are cold, and its code may still be compiling."""
    if slow_start_s <= 0 or up_for_s >= slow_start_s:
        return 1.0
    return max(least, up_for_s / slow_start_s)
