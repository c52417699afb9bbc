"""Is a replica up, and how busy is it? Two loops for each replica, so that one that hangs delays nobody but itself.

The verdicts (`ProbeVerdict`) are pure and know no time but what they are given; the loops around them do nothing but
wait, ask, and hand over what came.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from tandem.config.gateway_replicas import HealthConfig
from tandem.core.clock import Clock
from tandem.core.errors import TandemError
from tandem.gateway.replicas.base import Fetch
from tandem.gateway.replicas.replica import Replica
from tandem.gateway.upstream.failures import ConnectFailed, UpstreamFailure

_NOT_FOUND: Final = 404
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class ProbeVerdict:
    """What probes say of one replica so far."""

    config: HealthConfig
    num_failures: int = 0
    """In a row."""
    is_deep_proven: bool = False
    """The deep probe has succeeded since the replica was last not up."""
    deep_due_s: float = 0.0

    def succeeded(self) -> None:
        self.num_failures = 0

    def failed(self, *, is_gone: bool) -> bool:
        """Whether the replica is down now. `is_gone`: nobody listens there, which needs no second look."""
        self.num_failures += 1
        return is_gone or self.num_failures >= self.config.failures_to_down


class HealthWatch:
    """One replica's loops. `up` and `down` are called when the verdict is clear; what they mean, the pools say."""

    def __init__(
        self, replica: Replica, config: HealthConfig, fetch: Fetch, clock: Clock,
        up: Callable[[Replica], None], down: Callable[[Replica, str], None], rng: random.Random,
    ) -> None:  # fmt: skip
        self._replica = replica
        self._config = config
        self._fetch = fetch
        self._clock = clock
        self._up = up
        self._down = down
        self._rng = rng
        self._verdict = ProbeVerdict(config)
        self._metrics_path: str | None = replica.adapter.metrics_path()
        self._tasks: list[asyncio.Task[None]] = []
        self._is_complained = False

    def start(self) -> None:
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._probe_loop()), asyncio.create_task(self._scrape_loop())]

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks = []

    def reset(self) -> None:
        """The engine at the address is another now."""
        self._verdict = ProbeVerdict(self._config)
        self._metrics_path = self._replica.adapter.metrics_path()

    # Probes.

    async def _probe_loop(self) -> None:
        while True:
            await self._guarded(self.probe)
            await asyncio.sleep(self._jittered(self._config.probe_period_s))

    async def probe(self) -> None:
        """Once: ready, and if that is well and it is time, deep."""
        failure = await self._ask(self._replica.adapter.ready_probe(), self._config.probe_timeout_s)
        if failure is None and self._is_deep_due():
            failure = await self._probe_deeply()
        if failure is None:
            self._verdict.succeeded()
            self._up(self._replica)
            return
        if self._replica.state in ("starting", "down"):
            self._replica.reason = failure.reason
        if self._verdict.failed(is_gone=failure.is_gone):
            self._verdict.is_deep_proven = False
            self._down(self._replica, failure.reason)

    def _is_deep_due(self) -> bool:
        """At once while it isn't up: health alone doesn't bring back a replica. Later only when it has been idle, for
        an answer to a real request proves as much."""
        verdict, replica = self._verdict, self._replica
        if replica.is_asleep or replica.adapter.deep_probe(replica.pool.model) is None:
            return False
        if not verdict.is_deep_proven:
            return True
        last_s = replica.last_answer_s
        proven_until_s = verdict.deep_due_s if last_s is None else last_s + self._config.deep_probe_period_s
        return self._clock.now() >= max(verdict.deep_due_s, proven_until_s)

    async def _probe_deeply(self) -> _Failure | None:
        replica, config = self._replica, self._config
        call = replica.adapter.deep_probe(replica.pool.model)
        assert call is not None, "checked by the caller"
        began_s = self._clock.now()
        failure = await self._ask(call, config.deep_probe_timeout_s)
        if failure is not None and replica.last_answer_s is not None and replica.last_answer_s >= began_s:
            failure = None  # busy, not dead: it answered others in the meantime
        if failure is None:
            self._verdict.is_deep_proven = True
            self._verdict.deep_due_s = self._clock.now() + self._jittered(config.deep_probe_period_s)
            return None
        return _Failure(f"a request for one token failed: {failure.reason}", failure.is_gone)

    async def _ask(self, call: tuple[str, str, bytes | None], timeout_s: float) -> _Failure | None:
        replica = self._replica
        try:
            async with asyncio.timeout(timeout_s):
                status, body = await self._fetch(replica, *call, timeout_s)
        except TimeoutError:
            return _Failure(f"no answer within {timeout_s:g} s", False)
        except TandemError as error:  # an address that can't be
            return _Failure(error.message, True)
        except (UpstreamFailure, OSError) as error:
            is_gone = isinstance(error, ConnectFailed | ConnectionRefusedError)
            return _Failure(str(error) or type(error).__name__, is_gone)
        reason = replica.adapter.probe_failure(call[1], status, body, replica.pool.model)
        return None if reason is None else _Failure(reason, False)

    # Figures.

    async def _scrape_loop(self) -> None:
        while self._metrics_path is not None:
            await self._guarded(self.scrape)
            await asyncio.sleep(self._jittered(self._config.scrape_period_s))

    async def scrape(self) -> None:
        """Once. What can't be had leaves the older figures, until they are too old."""
        replica, before = self._replica, self._replica.in_flight
        body = await self._figures()
        now_s = self._clock.now()
        if body is not None:
            try:
                signals = replica.adapter.parse_signals(body, now_s)
            except ValueError as error:
                self._complain(str(error))
            else:
                replica.signals = signals.since(replica.signals)
                # The larger: what left while the scrape was under way may be in its figures or not.
                replica.in_flight_when_scraped = max(before, replica.in_flight)
                self._is_complained = False
                return
        self._age(now_s)

    def _age(self, now_s: float) -> None:
        signals = self._replica.signals
        if signals is not None and not signals.is_stale and now_s - signals.taken_s > self._config.stale_after_s:
            self._replica.signals = signals.stale()

    async def _figures(self) -> bytes | None:
        replica, timeout_s = self._replica, self._config.scrape_timeout_s
        assert self._metrics_path is not None, "who has no figures isn't asked"
        try:
            async with asyncio.timeout(timeout_s):
                status, body = await self._fetch(replica, "GET", self._metrics_path, None, timeout_s)
        except (TimeoutError, UpstreamFailure, OSError, TandemError):
            return None  # the probe says what is wrong
        if status == _NOT_FOUND and (other := replica.adapter.fallback_metrics_path()) is not None:
            self._metrics_path = other if self._metrics_path != other else replica.adapter.metrics_path()
            return None
        if status != 200:
            self._complain(f"status {status}")
            return None
        return body

    def _complain(self, what: str) -> None:
        """Once, not every second."""
        if not self._is_complained:
            self._is_complained = True
            _log.warning("replica %s: its figures can't be read: %s", self._replica.id, what)

    async def _guarded(self, ask: Callable[[], Awaitable[None]]) -> None:
        """A bug in an adapter must not end the watch: a replica that nobody watches stays as it is for ever."""
        try:
            await ask()
        except Exception:
            _log.exception("watching replica %s went wrong", self._replica.id)

    def _jittered(self, period_s: float) -> float:
        return period_s * (1 + self._config.jitter * self._rng.uniform(-1, 1))


@dataclass(frozen=True, slots=True)
class _Failure:
    reason: str
    is_gone: bool
