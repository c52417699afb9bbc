"""The way of a request: admit, choose, forward, account. Knows no HTTP library, no engine and no database.

There is one point of no return: the first content of a stream, or the whole of a plain answer. Before it a failure
costs only time, and another replica is asked; after it a failure is said, as an error event, and the stream ends
without `[DONE]`. Cancelling `handle` is how a client that left is told to everybody: it leaves the waiting room, or
the replica's connection closes, and the accounts are kept all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import Final

from tandem.config.gateway_upstream import UpstreamConfig
from tandem.core.clock import Clock
from tandem.core.errors import InvalidRequest, Overloaded, TandemError, Unavailable
from tandem.gateway import errors
from tandem.gateway.accounting import Accounts
from tandem.gateway.context import Caller, RequestContext
from tandem.gateway.exchange import Answer, ClientStream, Exchange
from tandem.gateway.forwarding import Attempt, AttemptFailed
from tandem.gateway.hedging import race
from tandem.gateway.metrics import GatewayMetrics
from tandem.gateway.parsing import Arrival, RequestParser
from tandem.gateway.parts import Admission, Pools, Room
from tandem.gateway.pings import Pings
from tandem.gateway.retries import RetryBudget
from tandem.gateway.routing.base import Decision, RoutingPolicy
from tandem.gateway.seats import Seat
from tandem.gateway.store.base import Limits
from tandem.gateway.upstream.client import UpstreamClient
from tandem.gateway.watch import Watch
from tandem.protocol import headers as names
from tandem.protocol import sse
from tandem.protocol.errors import encode_error

CLIENT_GONE: Final = 499
ENGINE: Final = "X-Tandem-Engine"
"""In answers: the kind of engine that served the request."""
GATEWAY_REQUEST_ID: Final = "X-Tandem-Request-Id"
"""In answers: our own id, which the ledger has."""
_log = logging.getLogger(__name__)


class Proxy:
    """One for the process; holds no state of a request."""

    def __init__(
        self, pools: Pools, policy: RoutingPolicy, room: Room, admission: Admission, limits: Limits,
        accounts: Accounts, metrics: GatewayMetrics, parser: RequestParser, upstream: UpstreamClient,
        config: UpstreamConfig, clock: Clock,
    ) -> None:  # fmt: skip
        self.pools = pools
        self.policy = policy
        self.room = room
        self.admission = admission
        self.limits = limits
        self.parser = parser
        self.config = config
        self.watch = Watch(clock, config)
        self._accounts = accounts
        self._metrics = metrics
        self._upstream = upstream
        self._clock = clock
        self._budget = RetryBudget(config.retry_ratio, config.retry_burst)

    async def handle(self, arrival: Arrival, caller: Caller, client: ClientStream | None) -> Answer | None:
        """The answer, or None where it was streamed to `client`. Raises a `TandemError` while nothing has been sent.
        Without a `client` a stream can't be asked for."""
        try:
            context = self._parse(arrival, caller, client)
        except TandemError as error:
            self._metrics.refused(error.status)
            raise
        exchange = self._exchange(context, client)
        try:
            with self._accounted(exchange):
                self._reserve(exchange)
                with contextlib.closing(await self._begun(exchange)) as attempt:
                    return await self._deliver(exchange, attempt)
        except TandemError as error:
            if await self._is_started(exchange):
                await self._say(exchange, error)
                return None
            raise

    # Admit.

    def _parse(self, arrival: Arrival, caller: Caller, client: ClientStream | None) -> RequestContext:
        context = self.parser.parse(arrival, caller, self._clock.now())
        if context.is_stream and client is None:
            raise InvalidRequest("stream can't be true here: the answer is kept as a whole.", param="stream")
        if caller.allowed_models is not None and context.model not in caller.allowed_models:
            raise errors.Forbidden(f"This key may not use the model {context.model!r:.80}.", param="model")
        self.pools.replicas(context.model, context.service_class)  # raises NotFound before anything is counted
        return context

    def _exchange(self, context: RequestContext, client: ClientStream | None) -> Exchange:
        exchange = Exchange(context, client if context.is_stream else None)
        if exchange.client is not None:
            exchange.pings = Pings(exchange.client, context.arrived_s, self.config, lambda: answer_headers(exchange))
        return exchange

    @contextlib.contextmanager
    def _accounted(self, exchange: Exchange) -> Iterator[None]:
        """Around everything that happens to an accepted request: it ends in the accounts exactly once."""
        self._metrics.arrived(exchange.context.service_class)
        self._budget.earn()
        self.watch.add(exchange)
        try:
            yield
        except TandemError as error:
            exchange.status = error.status
            exchange.outcome = "failed" if exchange.num_attempts else "refused"
            raise
        except asyncio.CancelledError:
            if exchange.outcome != "ok":
                exchange.status = CLIENT_GONE
            raise
        except Exception:
            exchange.status, exchange.outcome = 500, "failed"
            raise
        finally:
            self.watch.remove(exchange)
            self._accounts.close(exchange)

    def _reserve(self, exchange: Exchange) -> None:
        """The longest answer that was asked for, so that requests which come together can't pass a limit together."""
        context = exchange.context
        longest = context.max_output_tokens
        output_tokens = context.output_tokens if longest is None else longest * context.num_answers
        self.limits.take(context.caller, context.prompt_tokens, output_tokens, context.arrived_s)
        exchange.is_reserved, exchange.reserved_tokens = True, context.prompt_tokens + output_tokens

    # Choose and forward, until the point of no return.

    async def _begun(self, exchange: Exchange) -> Attempt:
        """An attempt whose answer has begun. Its owner closes it."""
        last: AttemptFailed | None = None
        while True:
            attempt = await self._next_attempt(exchange, last)
            try:
                attempt = await self._first_to_answer(exchange, attempt)
            except AttemptFailed as failure:
                self._end(exchange, attempt)
                self._blame(exchange, failure)
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
            first, lambda: self._hedge(exchange, first), after_s, lambda failure: self._blame(exchange, failure)
        )

    def _hedge(self, exchange: Exchange, first: Attempt) -> Attempt | None:
        """A second attempt, if another replica has room now and the budget allows it."""
        context, seat = exchange.context, Seat(exchange.context, self.admission)
        context.excluded.add(first.replica.id)
        try:
            decision = self._choose(context, seat)
        finally:
            context.excluded.discard(first.replica.id)
        if decision is None or not self._budget.spend():
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

    def _blame(self, exchange: Exchange, failure: AttemptFailed) -> None:
        exchange.context.excluded.add(failure.replica.id)
        if failure.is_replicas_fault:
            _log.warning("replica %s failed a request: %s", failure.replica.id, failure.__cause__ or failure)
            self.pools.failed(failure.replica, str(failure))

    def _retryable(self, exchange: Exchange, failure: AttemptFailed) -> AttemptFailed:
        """The failure, if another attempt may be made. Raises what the client is told otherwise."""
        if not failure.is_retryable or exchange.num_attempts >= self.config.max_attempts:
            raise failure.error
        if not self._budget.spend():
            self._metrics.extra_attempt("no_budget")
            raise failure.error
        self._metrics.extra_attempt("retry")
        return failure

    # Deliver.

    async def _deliver(self, exchange: Exchange, attempt: Attempt) -> Answer | None:
        if attempt.relay is None:
            return await self._deliver_plain(exchange, attempt)
        client = exchange.client
        assert client is not None, "a stream was asked for"
        if not await self._is_started(exchange):
            await client.start({**sse.HEADERS, **answer_headers(exchange)})
        exchange.status = 200
        attempt.relay.pass_on(client)
        try:
            await attempt.end()
            exchange.outcome = "ok"
        except AttemptFailed as failure:
            self._blame(exchange, failure)
            raise failure.error from failure
        finally:
            exchange.num_events = attempt.relay.scanner.num_events
            exchange.usage = attempt.relay.scanner.usage
        await client.end()
        return None

    async def _deliver_plain(self, exchange: Exchange, attempt: Attempt) -> Answer | None:
        """Also where a stream was asked for and the engine answered plainly: then as the stream's only event."""
        exchange.status, exchange.outcome = 200, "ok"
        exchange.usage = attempt.usage
        exchange.answer_bytes = len(attempt.body)
        if await self._is_started(exchange):
            assert exchange.client is not None, "only streams are started"
            exchange.client.write(sse.encode_event(attempt.body.replace(b"\n", b"")) + sse.DONE)
            await exchange.client.end()
            return None
        return Answer(200, {"Content-Type": "application/json", **answer_headers(exchange)}, attempt.body)

    async def _is_started(self, exchange: Exchange) -> bool:
        """Whether the stream's headers are out. From here on there are no pings."""
        return exchange.pings is not None and await exchange.pings.stop()

    async def _say(self, exchange: Exchange, error: TandemError) -> None:
        """An error when it can only be an event. No `[DONE]` behind it: the answer is not whole."""
        assert exchange.client is not None, "only streams are started"
        exchange.client.write(sse.encode_event(encode_error(error)))
        await exchange.client.end()


def answer_headers(exchange: Exchange) -> dict[str, str]:
    """Who answered, and under which id. Before there is an answer (pings), only what is known."""
    context, replica = exchange.context, exchange.replica
    headers = {
        names.REQUEST_ID: context.client_request_id or context.request_id,
        GATEWAY_REQUEST_ID: context.request_id,
        names.SERVICE_CLASS: context.service_class,
    }
    if replica is not None:
        headers[names.POOL] = replica.pool.name
        headers[names.REPLICA] = replica.id
        headers[ENGINE] = replica.adapter.kind
    return headers
