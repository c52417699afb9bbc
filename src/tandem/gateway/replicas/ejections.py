"""The circuit breakers of all replicas, and the comparison within each pool: what `circuit.py` decides, carried out."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from tandem.config.gateway_replicas import CircuitConfig
from tandem.gateway.replicas.circuit import Circuit, Window, find_outliers
from tandem.gateway.replicas.pool import Pool
from tandem.gateway.replicas.replica import Replica

_log = logging.getLogger(__name__)


class Ejections:
    """Replicas that it doesn't know (removed meanwhile) are passed over: their last requests may still end."""

    def __init__(self, config: CircuitConfig, now_s: float) -> None:
        self._config = config
        self._circuits: dict[Replica, Circuit] = {}
        self._compare_due_s = now_s + config.outlier_period_s

    def add(self, replica: Replica) -> None:
        self._circuits[replica] = Circuit(replica, self._config)

    def remove(self, replica: Replica) -> None:
        self._circuits.pop(replica, None)

    def reset(self, replica: Replica) -> None:
        """Another engine is there now."""
        if (circuit := self._circuits.get(replica)) is not None:
            circuit.reset()

    def answered(self, replica: Replica, latency_s: float | None, now_s: float) -> bool:
        """Whether it was out, and takes all requests again."""
        circuit = self._circuits.get(replica)
        if circuit is None:
            return False
        was_out = replica.trial_limit is not None
        circuit.answered(now_s, latency_s)
        is_back = was_out and replica.trial_limit is None
        if is_back:
            _log.info("replica %s answers again", replica.id)
        return is_back

    def failed(self, replica: Replica, reason: str, now_s: float) -> None:
        circuit = self._circuits.get(replica)
        if circuit is None:
            return
        before_s = replica.ejected_until_s
        circuit.failed(now_s)
        if replica.ejected_until_s > before_s:
            _say(replica, f"{replica.failures_in_row} failures in a row, the last: {reason}", now_s)

    def tick(self, now_s: float) -> list[Replica]:
        """Those that may be tried with one request now."""
        for circuit in self._circuits.values():
            circuit.tick(now_s)
        return [
            replica
            for replica, circuit in self._circuits.items()
            if replica.state == "up"
            and circuit.state(now_s) == "half-open"
            and replica.in_flight < replica.max_in_flight
        ]

    def compare(self, pools: Iterable[Pool], now_s: float) -> None:
        """When it is time: ejects outliers, and begins to count anew."""
        if now_s < self._compare_due_s:
            return
        self._compare_due_s = now_s + self._config.outlier_period_s
        for pool in pools:
            circuits = [(replica, self._circuits[replica]) for replica in pool.replicas if replica in self._circuits]
            for replica in find_outliers(circuits, self._config, now_s):
                self._circuits[replica].open(now_s)
                _say(replica, "it fails, or is slow, far more than the others of its pool", now_s)
            for _, circuit in circuits:
                circuit.settle(now_s)
                circuit.window = Window()


def _say(replica: Replica, why: str, now_s: float) -> None:
    pause_s = replica.ejected_until_s - now_s
    _log.warning("replica %s gets no requests for %.0f s: %s", replica.id, pause_s, why)
