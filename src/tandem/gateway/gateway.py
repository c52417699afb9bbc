"""The gateway as one object: its parts, its proxy, and the loops that run while it does. Knows no HTTP server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from tandem.config.gateway_http import GatewayHttpConfig
from tandem.config.gateway_upstream import UpstreamConfig
from tandem.core.clock import Clock, SystemClock
from tandem.core.errors import TandemError
from tandem.gateway.accounting import Accounts
from tandem.gateway.context import Caller, Endpoint
from tandem.gateway.dispatch import Dispatcher
from tandem.gateway.exchange import Answer
from tandem.gateway.lengths import LengthEstimates
from tandem.gateway.metrics import GatewayMetrics
from tandem.gateway.parsing import Arrival, ParserConfig, RequestParser
from tandem.gateway.parts import Admission, Pools, Room, Scores
from tandem.gateway.proxy import Proxy
from tandem.gateway.responses import error_answer
from tandem.gateway.routing.base import RoutingPolicy
from tandem.gateway.store.base import Keys, Ledger, Limits
from tandem.gateway.upstream.client import UpstreamClient


@dataclass(slots=True, kw_only=True)
class Parts:
    """What the gateway is made of; the caller starts and stops those that need it."""

    pools: Pools
    policy: RoutingPolicy
    room: Room
    admission: Admission
    keys: Keys
    limits: Limits
    ledger: Ledger
    scores: Scores | None = None
    upstream_config: UpstreamConfig = field(default_factory=UpstreamConfig)
    http_config: GatewayHttpConfig = field(default_factory=GatewayHttpConfig)
    parser_config: ParserConfig = field(default_factory=ParserConfig)
    currency: str = "USD"
    price_version: str = "1"
    clock: Clock = field(default_factory=SystemClock)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)


class Gateway:
    """One for the process and its event loop. `start` before the first request, `close` after the last."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.keys = parts.keys
        self.pools = parts.pools
        self.registry = parts.registry
        self.http_config = parts.http_config
        self.clock = parts.clock
        self.lengths = LengthEstimates()
        self.metrics = GatewayMetrics(parts.registry)
        self.upstream = UpstreamClient(parts.upstream_config, parts.clock)
        self.parser = RequestParser(self.lengths, parts.parser_config)
        accounts = Accounts(
            parts.ledger, parts.limits, self.metrics, self.lengths, parts.scores, parts.clock,
            currency=parts.currency, price_version=parts.price_version,
        )  # fmt: skip
        self.dispatcher = Dispatcher(
            parts.pools, parts.policy, parts.room, parts.admission, self.metrics, self.upstream, parts.upstream_config,
            parts.clock,
        )  # fmt: skip
        self.proxy = Proxy(self.dispatcher, parts.limits, accounts, self.metrics, self.parser, parts.clock)
        self.started_unix_s = int(time.time())
        self.is_draining = False
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._watching = asyncio.create_task(self.proxy.watch.run())

    def reconfigure(
        self, *, policy: RoutingPolicy | None = None, room: Room | None = None, parser: ParserConfig | None = None,
        upstream: UpstreamConfig | None = None,
    ) -> None:  # fmt: skip
        """For requests from now on; those that run keep what they began with. Pools and keys change in place."""
        self.dispatcher.policy = policy or self.dispatcher.policy
        self.dispatcher.room = room or self.dispatcher.room
        self.parser.config = parser or self.parser.config
        if upstream is not None:
            self.parts.upstream_config = self.dispatcher.config = upstream
            self.proxy.watch.reconfigure(upstream)
            self.upstream.reconfigure(upstream)

    async def drain(self, timeout_s: float) -> bool:
        """Takes nothing new; whether all that runs ended within the time."""
        self.is_draining = True
        return await self.proxy.watch.all_gone(timeout_s)

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching
        await self.upstream.close()

    async def complete(self, endpoint: Endpoint, body: bytes, caller: Caller, request_id: str | None = None) -> Answer:
        """One line of a batch: as a client's request, in the batch class unless the key has a rule of its own.
        Errors are answers, as over HTTP. Cancelling it cancels the request at the engine."""
        arrival = Arrival(endpoint, body, request_id or new_request_id(), from_batch=True)
        try:
            answer = await self.proxy.handle(arrival, caller, None)
        except TandemError as error:
            return error_answer(error)
        assert answer is not None, "without a client there is no stream"
        return answer


_random = random.Random()
os.register_at_fork(after_in_child=_random.seed)


def new_request_id() -> str:
    """Unique, and telling nothing. No secret, so it needn't cost a system call: the seed was random."""
    return f"req-{_random.getrandbits(96):024x}"
