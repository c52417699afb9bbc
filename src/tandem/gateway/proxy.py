"""The way of a request: admit, choose, forward, account. Knows no HTTP library, no engine and no database.

There is one point of no return: the first content of a stream, or the whole of a plain answer. Before it a failure
costs only time, and another replica is asked; after it a failure is said, as an error event, and the stream ends
without `[DONE]`. Cancelling `handle` is how a client that left is told to everybody: it leaves the waiting room, or
the replica's connection closes, and the accounts are kept all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Final

from tandem.core.clock import Clock
from tandem.core.errors import InvalidRequest, TandemError
from tandem.gateway import errors
from tandem.gateway.accounting import Accounts
from tandem.gateway.context import Caller, RequestContext
from tandem.gateway.dispatch import Dispatcher
from tandem.gateway.exchange import Answer, ClientStream, Exchange
from tandem.gateway.forwarding import Attempt, AttemptFailed
from tandem.gateway.metrics import GatewayMetrics
from tandem.gateway.parsing import Arrival, RequestParser
from tandem.gateway.pings import Pings
from tandem.gateway.store.base import Limits
from tandem.gateway.watch import Watch
from tandem.protocol import headers as names
from tandem.protocol import sse
from tandem.protocol.errors import encode_error

CLIENT_GONE: Final = 499
ENGINE: Final = "X-Tandem-Engine"
"""In answers: the kind of engine that served the request."""
GATEWAY_REQUEST_ID: Final = "X-Tandem-Request-Id"
"""In answers: our own id, which the ledger has."""


class Proxy:
    """One for the process; holds no state of a request."""

    def __init__(
        self, dispatcher: Dispatcher, limits: Limits, accounts: Accounts, metrics: GatewayMetrics,
        parser: RequestParser, clock: Clock,
    ) -> None:  # fmt: skip
        self.dispatcher = dispatcher
        self.limits = limits
        self.parser = parser
        self.watch = Watch(clock, dispatcher.config)
        self._accounts = accounts
        self._metrics = metrics
        self._clock = clock

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
                with contextlib.closing(await self.dispatcher.begin(exchange)) as attempt:
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
        self.dispatcher.pools.replicas(
            context.model, context.service_class
        )  # raises NotFound before anything is counted
        return context

    def _exchange(self, context: RequestContext, client: ClientStream | None) -> Exchange:
        exchange = Exchange(context, client if context.is_stream else None)
        if exchange.client is not None:
            exchange.pings = Pings(
                exchange.client, context.arrived_s, self.dispatcher.config, lambda: answer_headers(exchange)
            )
        return exchange

    @contextlib.contextmanager
    def _accounted(self, exchange: Exchange) -> Iterator[None]:
        """Around everything that happens to an accepted request: it ends in the accounts exactly once."""
        self._metrics.arrived(exchange.context.service_class)
        self.dispatcher.budget.earn()
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
            self.dispatcher.blame(exchange, failure)
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
