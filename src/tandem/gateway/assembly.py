"""Puts a gateway together from its configuration, starts and stops its parts in order, and changes them at a reload.

Knows all parts and does the work of none.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry

from tandem.config.deployment import Goals, PoolConfig, TandemConfig
from tandem.config.secrets import resolve_secret
from tandem.core.clock import Clock, SystemClock
from tandem.core.errors import ConfigError, TandemError
from tandem.core.types import ServiceClass
from tandem.gateway.admission.admission import Admission
from tandem.gateway.admission.metrics import AdmissionMetrics
from tandem.gateway.app import authenticate, make_app
from tandem.gateway.batches.batch_routes import batch_routes
from tandem.gateway.batches.file_routes import file_routes
from tandem.gateway.batches.files import Folder
from tandem.gateway.batches.lines import LineAnswer, LineRequest
from tandem.gateway.batches.runner import BatchRunner
from tandem.gateway.cache_events import CacheEvents
from tandem.gateway.context import Caller, Endpoint, Goal, RequestContext
from tandem.gateway.exchange import Answer
from tandem.gateway.gateway import Gateway, Parts
from tandem.gateway.key_routes import key_routes
from tandem.gateway.keys import StoredKeys
from tandem.gateway.ledger import StoredLedger
from tandem.gateway.limits import StoredLimits
from tandem.gateway.parsing import ParserConfig
from tandem.gateway.replicas.fetch import upstream_fetch
from tandem.gateway.replicas.pool import Pool, make_pool
from tandem.gateway.replicas.pools import Pools
from tandem.gateway.replicas.reload import reload
from tandem.gateway.replicas.replica import Replica
from tandem.gateway.responses import error_answer
from tandem.gateway.routing.coserving import Room
from tandem.gateway.routing.facts import PoolFacts, facts_of
from tandem.gateway.routing.policies import PolicyParts, make_policy
from tandem.gateway.routing.predictions import PredictionScores
from tandem.gateway.routing.replica_models import ReplicaModels
from tandem.gateway.shares import Shares
from tandem.gateway.status_routes import status_routes
from tandem.gateway.store.database import Database
from tandem.gateway.upstream.client import UpstreamClient
from tandem.gateway.usage import usage_routes

DRAIN_BATCHES_S: Final = 5.0
ROOM_PERIOD_S: Final = 0.5
_log = logging.getLogger(__name__)


class Assembly:
    """One gateway process. `start` before its application serves, `close` after."""

    def __init__(self, config: TandemConfig, *, clock: Clock | None = None) -> None:
        """Raises `ConfigError`. Opens nothing yet."""
        self.config = config
        settings = config.gateway
        clock = clock or SystemClock()
        registry = CollectorRegistry()
        self.models = ReplicaModels(_facts(config.pool))
        self._policy_parts = PolicyParts.of(settings.routing, self.models)
        self._calls = UpstreamClient(settings.upstream, clock)
        fetch = upstream_fetch(self._calls)
        self.pools = Pools(
            [_pool(pool) for pool in config.pool],
            fetch,
            health=settings.health,
            circuit=settings.circuit,
            clock=clock,
        )
        self.room = Room(self.models, settings.routing, _goal(config.goals, "interactive"))
        self.admission = Admission(settings.admission, self._has_replica_up, clock=clock)
        self.pools.on_up(lambda replica: self.admission.notify(replica.pool.names))
        self.pools.on_gone(self._forget)
        AdmissionMetrics(self.admission, registry)
        data = Path(settings.store.data_dir).expanduser()
        self.database = Database(settings.database, settings.store, clock)
        self.keys = StoredKeys(
            self.database,
            settings.key,
            secret=settings.store.secret,
            cache=data / "keys.json",
            # Where nobody but this machine can call and no key exists, whoever calls is its operator.
            anonymous=Caller(is_admin=is_loopback(settings.listen)),
        )
        self.ledger = StoredLedger(self.database, data / "spool", clock=clock)
        self.limits = StoredLimits(self.keys.rules, self.ledger.spending, clock, settings.store.limits_sync_s)
        self._shares = Shares(self.database, self.keys, self.limits, clock)
        self.gateway = Gateway(
            Parts(
                pools=self.pools,
                policy=make_policy(self._policy_parts),
                room=self.room,
                admission=self.admission,
                keys=self.keys,
                limits=self.limits,
                ledger=self.ledger,
                scores=PredictionScores(self.models, self._policy_parts.index, registry),
                upstream_config=settings.upstream,
                http_config=settings.http,
                parser_config=_parser_config(config.goals),
                currency=settings.currency,
                price_version=settings.price_version,
                clock=clock,
                registry=registry,
            )
        )
        self._folder = Folder(data)
        self.batches = BatchRunner(self.database, self._folder, settings.batches, self._run_line, clock=clock)
        self._events = CacheEvents(self.pools, self._policy_parts.index, fetch)
        self._clock = clock
        self._looking: asyncio.Task[None] | None = None

    def app(self) -> web.Application:
        """All routes. The application's own start and clean-up run this assembly's."""
        batches = self.config.gateway.batches
        routes = [
            *file_routes(self.database, self._folder, batches, authenticate),
            *batch_routes(self.database, batches, authenticate, self.batches.notify),
        ]
        admin = [
            *usage_routes(self.database, authenticate),
            *key_routes(self.database, self.keys, self.ledger.spending, authenticate),
            *status_routes(self),
        ]
        return make_app(self.gateway, routes, admin)

    async def start(self) -> None:
        """The database may be away; everything that must answer now does so without it."""
        await self.database.start()
        await self.keys.start()
        await self.ledger.start()
        await self._shares.start()
        await self.batches.start()
        await self.pools.start()
        self._events.start()
        self._looking = asyncio.create_task(self._look_for_room())

    async def close(self) -> None:
        """In the reverse order: who writes to another ends before it."""
        self.admission.close()
        if self._looking is not None:
            self._looking.cancel()
        await self._events.close()
        await self.batches.close(DRAIN_BATCHES_S)
        await self.pools.stop()
        await self._shares.close()
        await self.ledger.close()
        await self.keys.close()
        await self.database.close()
        await self._calls.close()

    def reload(self, config: TandemConfig) -> list[str]:
        """Take over what can change while requests run; what can't is told, a sentence each. Raises `ConfigError`
        before anything has changed."""
        fresh = [_pool(pool) for pool in config.pool]
        self.keys.configure(config.gateway.key)
        reload(self.pools, fresh, drain_timeout_s=config.gateway.process.drain_timeout_s)
        self.models.set_facts(_facts(config.pool))
        self.admission.reconfigure(config.gateway.admission)
        self._policy_parts = replace(self._policy_parts, config=config.gateway.routing)
        self.room = Room(self.models, config.gateway.routing, _goal(config.goals, "interactive"))
        self.gateway.reconfigure(
            policy=make_policy(self._policy_parts),
            room=self.room,
            parser=_parser_config(config.goals),
            upstream=config.gateway.upstream,
        )
        kept = _unchangeable(self.config, config)
        self.config = config
        self.admission.notify()
        return kept

    async def _look_for_room(self) -> None:
        """New figures of the engines may let batch work in, and nobody else says so."""
        while True:
            await asyncio.sleep(ROOM_PERIOD_S)
            self.admission.notify()

    def _forget(self, replica: Replica) -> None:
        """Another process has its place, or none."""
        self.models.forget(replica.id)
        self._policy_parts.index.forget(replica.id)

    def _has_replica_up(self, request: RequestContext) -> bool:
        replicas = self.pools.replicas(request.model, request.service_class)
        return bool(self.room.usable(request, replicas, self._clock.now()))

    async def _run_line(self, line: LineRequest, headers: Mapping[str, str]) -> LineAnswer:
        endpoint: Endpoint = line.endpoint  # type: ignore[assignment]
        try:
            caller = self.keys.caller_of(line.key_id)
        except TandemError as error:
            return _line_answer(error_answer(error))
        return _line_answer(await self.gateway.complete(endpoint, line.body, caller))


def _line_answer(answer: Answer) -> LineAnswer:
    retry_after = answer.headers.get("Retry-After")
    request_id = answer.headers.get("X-Tandem-Request-Id")
    return LineAnswer(answer.status, answer.body, float(retry_after) if retry_after else None, request_id)


def _pool(config: PoolConfig) -> Pool:
    return make_pool(
        config,
        aliases=config.aliases,
        api_key=resolve_secret(config.api_key, os.environ) if config.api_key else None,
        max_concurrency=config.max_concurrency,
        has_priorities=config.has_priorities,
    )


def _facts(pools: Iterable[PoolConfig]) -> dict[str, PoolFacts]:
    return {pool.name: facts_of(pool) for pool in pools}


def _goal(goals: Goals, service_class: ServiceClass) -> Goal:
    if service_class == "interactive":
        return Goal(ttft_s=goals.interactive.ttft_s, tpot_s=goals.interactive.tpot_s)
    return Goal(deadline_s=goals.batch.deadline_h * 3600)


def _parser_config(goals: Goals) -> ParserConfig:
    return ParserConfig(goals={"interactive": _goal(goals, "interactive"), "batch": _goal(goals, "batch")})


def is_loopback(listen: str) -> bool:
    """Whether only this machine reaches the address."""
    host = listen.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _unchangeable(old: TandemConfig, new: TandemConfig) -> list[str]:
    """Settings that only a restart takes over."""
    names = (
        "listen",
        "database",
        "processes",
        "currency",
        "price_version",
        "process",
        "http",
        "health",
        "circuit",
        "store",
        "batches",
    )
    changed = [n for n in names if getattr(old.gateway, n) != getattr(new.gateway, n)]
    return [f"[gateway] {name} has changed; it is taken over at the next start" for name in changed]


def check_pools(config: TandemConfig) -> None:
    """What a gateway needs beyond what each setting says for itself. Raises `ConfigError`."""
    if not config.pool:
        raise ConfigError("there is no [[pool]]; a gateway needs at least one, or --replica KIND=URL.")
    for pool in config.pool:
        if pool.provider in ("kubernetes", "ray"):
            raise ConfigError(
                f"the pool {pool.name!r} has provider {pool.provider}, which there isn't yet; it must be process, or "
                "endpoints of engines that something else runs."
            )
        if pool.provider == "endpoints" and not pool.endpoints:
            raise ConfigError(f"the pool {pool.name!r} has provider endpoints, but no endpoints; name some.")
        if pool.endpoints and pool.provider == "process":
            raise ConfigError(
                f'the pool {pool.name!r} has endpoints and provider process; write provider = "endpoints", or leave '
                "endpoints out."
            )
