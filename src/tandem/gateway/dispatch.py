"""Choose and forward, until an answer has begun: the part of the way on which a failure can still be mended.

Each round takes a place (waiting for it if need be), sends, and waits for the first content or the whole of a plain
answer. What goes wrong is somebody's fault: the replica's is told to the pools; the request's goes to the client; and
what another replica may do better is tried there, within the budget.
"""

from __future__ import annotations

import logging

from tandem.config.gateway_upstream import UpstreamConfig
from tandem.core.clock import Clock
from tandem.core.errors import Overloaded, Unavailable
from tandem.gateway.context import RequestContext
from tandem.gateway.exchange import Exchange
from tandem.gateway.forwarding import Attempt, AttemptFailed
from tandem.gateway.hedging import race
from tandem.gateway.metrics import GatewayMetrics
from tandem.gateway.parts import Admission, Pools, Room
from tandem.gateway.retries import RetryBudget
from tandem.gateway.routing.base import Decision, RoutingPolicy
from tandem.gateway.seats import Seat
from tandem.gateway.upstream.client import UpstreamClient

_log = logging.getLogger(__name__)


class Dispatcher:
    """One for the process; holds no state of a request. `policy`, `room` and `config` may be replaced between two."""

    def __init__(
        self, pools: Pools, policy: RoutingPolicy, room: Room, admission: Admission, metrics: GatewayMetrics,
        upstream: UpstreamClient, config: UpstreamConfig, clock: Clock,
    ) -> None:  # fmt: skip
        self.pools = pools
        self.policy = policy
        self.room = room
        self.admission = admission
        self.config = config
        self.budget = RetryBudget(config.retry_ratio, config.retry_burst)
        self._metrics = metrics
        self._upstream = upstream
        self._clock = clock

    async def begin(self, exchange: Exchange) -> Attempt:
        """An attempt whose answer has begun. Its owner closes it."""
        last: AttemptFailed | None = None
        while True:
            attempt = await self._next_attempt(exchange, last)
            try:
                attempt = await self._first_to_answer(exchange, attempt)
            except AttemptFailed as failure:
                self._end(exchange, attempt)
                self.blame(exchange, failure)
                last = self._retryable(exchange, failure)
            except BaseException:
                self._end(exchange, attempt)
                raise
            else:
                self._succeeded(exchange, attempt)
                return attempt

    async def _next_attempt(self, exchange: Exchange, last: AttemptFailed | None) -> Attempt:
        """Waits for a replica with room. After a failure it waits only if that can help: see `_is_worth_waiting`."""
        context, seat = exchange.context, Seat(exchange.context, self.admission)
        if last is not None and not self._is_worth_waiting(context):
            raise last.error
        try:
            decision = await self.admission.enter(context, lambda: self._choose(context, seat))
        except Unavailable:
            seat.close()
            if last is not None and isinstance(last.error, Overloaded):
                raise last.error from None  # a 429 never becomes a 503
            raise
        except BaseException:
            seat.close()
            raise
        return self._attempt(exchange, decision, seat)

    def _choose(self, context: RequestContext, seat: Seat) -> Decision | None:
        now_s = self._clock.now()
        candidates = self.room.available(context, self.pools.replicas(context.model, context.service_class), now_s)
        decision = self.policy.choose(context, candidates, now_s) if candidates else None
        if decision is not None:
            seat.take(decision.replica)
        return decision

    def _is_worth_waiting(self, context: RequestContext) -> bool:
        """Another replica is up; or none is, and those that failed may come back. If the only one that is up is the
        one that failed, waiting mends nothing."""
        replicas = self.pools.replicas(context.model, context.service_class)
        usable = self.room.usable(context, replicas, self._clock.now())
        if not usable:
            context.excluded.clear()
            return True
        return any(replica.id not in context.excluded for replica in usable)

    def _attempt(self, exchange: Exchange, decision: Decision, seat: Seat) -> Attempt:
        attempt = Attempt(exchange.context, decision, seat, self._upstream, self.config, self._clock.now)
        exchange.decision = decision
        exchange.num_attempts += 1
        exchange.sent_s = attempt.sent_s
        exchange.attempts.add(attempt)
        self.policy.sent(exchange.context, decision.replica)
        return attempt

    async def _first_to_answer(self, exchange: Exchange, first: Attempt) -> Attempt:
        after_s = self.config.hedge_after_s
        if after_s is None or exchange.context.service_class != "interactive":
            await first.begin()
            return first
        return await race(
            first, lambda: self._hedge(exchange, first), after_s, lambda failure: self.blame(exchange, failure)
        )

    def _hedge(self, exchange: Exchange, first: Attempt) -> Attempt | None:
        """A second attempt, if another replica has room now and the budget allows it."""
        context, seat = exchange.context, Seat(exchange.context, self.admission)
        context.excluded.add(first.replica.id)
        try:
            decision = self._choose(context, seat)
        finally:
            context.excluded.discard(first.replica.id)
        if decision is None or not self.budget.spend():
            seat.close()
            return None
        self._metrics.extra_attempt("hedge")
        return self._attempt(exchange, decision, seat)

    def _succeeded(self, exchange: Exchange, attempt: Attempt) -> None:
        exchange.attempts &= {attempt}
        exchange.decision, exchange.sent_s = attempt.decision, attempt.sent_s
        if attempt.has_content:
            exchange.first_token_s = self._clock.now()
        attempt.seat.got_first_token()
        first_s = exchange.first_token_s
        self.pools.answered(attempt.replica, None if first_s is None else first_s - attempt.sent_s)

    def _end(self, exchange: Exchange, attempt: Attempt) -> None:
        exchange.attempts.discard(attempt)
        attempt.close()

    def blame(self, exchange: Exchange, failure: AttemptFailed) -> None:
        exchange.context.excluded.add(failure.replica.id)
        if failure.is_replicas_fault:
            _log.warning("replica %s failed a request: %s", failure.replica.id, failure.__cause__ or failure)
            self.pools.failed(failure.replica, str(failure))

    def _retryable(self, exchange: Exchange, failure: AttemptFailed) -> AttemptFailed:
        """The failure, if another attempt may be made. Raises what the client is told otherwise."""
        if not failure.is_retryable or exchange.num_attempts >= self.config.max_attempts:
            raise failure.error
        if not self.budget.spend():
            self._metrics.extra_attempt("no_budget")
            raise failure.error
        self._metrics.extra_attempt("retry")
        return failure
