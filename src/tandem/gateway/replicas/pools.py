"""All pools: which replicas serve an alias, and what becomes of each replica: up, draining, down, out for a while.

Not for several event loops. Replicas come and go at run time: from the configuration, from a provider, from a reload.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from tandem.config.gateway_replicas import CircuitConfig, HealthConfig
from tandem.core.clock import Clock, SystemClock
from tandem.core.errors import ConfigError, NotFound
from tandem.core.types import ServiceClass
from tandem.gateway.replicas.base import Fetch
from tandem.gateway.replicas.ejections import Ejections
from tandem.gateway.replicas.health import HealthWatch
from tandem.gateway.replicas.pool import Pool
from tandem.gateway.replicas.replica import Replica

Listener = Callable[[Replica], None]
_TICK_S: Final = 1.0
_DRAIN_POLL_S: Final = 0.05
_log = logging.getLogger(__name__)


class Pools:
    """`start` begins to watch; before it, and after `stop`, replicas keep the state they have."""

    def __init__(
        self, pools: Iterable[Pool], fetch: Fetch, *, health: HealthConfig | None = None,
        circuit: CircuitConfig | None = None, clock: Clock | None = None, rng: random.Random | None = None,
    ) -> None:  # fmt: skip
        self._fetch = fetch
        self._health = health or HealthConfig()
        self._clock = clock or SystemClock()
        self._ejections = Ejections(circuit or CircuitConfig(), self._clock.now())
        self._rng = rng or random.Random()
        self._pools: dict[str, Pool] = {}
        self._watches: dict[Replica, HealthWatch] = {}
        self._serving: dict[tuple[str, ServiceClass], tuple[Replica, ...]] = {}
        """Answers of `replicas`, until something changes: it is asked several times for each request."""
        self._on_up: list[Listener] = []
        self._on_gone: list[Listener] = []
        self._is_started = False
        self._tasks: set[asyncio.Task[bool] | asyncio.Task[None]] = set()
        for pool in pools:
            self.add_pool(pool)

    # Who serves what.

    def aliases(self) -> Sequence[str]:
        """The models a client can name, each once, in the order of the configuration."""
        return list(dict.fromkeys(name for pool in self._pools.values() for name in pool.names))

    def resolve(self, alias: str) -> tuple[Pool, ...]:
        """Raises `NotFound`."""
        if found := tuple(pool for pool in self._pools.values() if alias in pool.names):
            return found
        known = ", ".join(sorted(self.aliases())[:20]) or "none"
        raise NotFound(
            f"The model {alias!r:.200} does not exist here; there are: {known}.", param="model", code="model_not_found"
        )

    def replicas(self, model: str, service_class: ServiceClass) -> Sequence[Replica]:
        """All that serve the alias for the class, whatever their state. Raises `NotFound` for an unknown alias."""
        found = self._serving.get((model, service_class))
        if found is None:
            pools = self.resolve(model)
            found = tuple(r for pool in pools if service_class in pool.roles for r in pool.replicas)
            self._serving[model, service_class] = found
        return found

    @property
    def pools(self) -> Sequence[Pool]:
        return list(self._pools.values())

    def pool(self, name: str) -> Pool:
        """Raises `NotFound`."""
        try:
            return self._pools[name]
        except KeyError:
            raise NotFound(f"No pool is called {name!r:.80}; there are: {', '.join(self._pools) or 'none'}.") from None

    def all_replicas(self) -> list[Replica]:
        return [replica for pool in self._pools.values() for replica in pool.replicas]

    def find(self, replica_id: str) -> Replica | None:
        return next((replica for replica in self.all_replicas() if replica.id == replica_id), None)

    # What the data path tells.

    def answered(self, replica: Replica, latency_s: float | None = None) -> None:
        """A request got its first token, or its whole answer. `latency_s`: to the first token, of streams."""
        if self._ejections.answered(replica, latency_s, self._clock.now()):
            self._tell_up(replica)

    def failed(self, replica: Replica, reason: str) -> None:
        """A request failed because of the replica: unreachable, broken off, silent, an error of its own."""
        self._ejections.failed(replica, reason, self._clock.now())

    # Listeners.

    def on_up(self, listener: Listener) -> None:
        """Told when a replica can take requests that couldn't before: those who wait may go."""
        self._on_up.append(listener)

    def on_gone(self, listener: Listener) -> None:
        """Told when what is known of a replica no longer holds: removed, or another process has its place."""
        self._on_gone.append(listener)

    # Watching.

    async def start(self) -> None:
        self._is_started = True
        for watch in self._watches.values():
            watch.start()
        self._tasks.add(asyncio.create_task(self._tick_loop()))

    async def stop(self) -> None:
        self._is_started = False
        for watch in self._watches.values():
            watch.stop()
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def probe_once(self) -> None:
        """All replicas at the same time: for a start that wants to know, and for tests."""
        await asyncio.gather(*(watch.probe() for watch in self._watches.values()))

    async def _tick_loop(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self.tick()

    def tick(self) -> None:
        """Once a second: who may be tried again, and now and then who is far worse than the others."""
        now_s = self._clock.now()
        for replica in self._ejections.tick(now_s):
            self._tell_up(replica)
        self._ejections.compare(self._pools.values(), now_s)

    def _up(self, replica: Replica) -> None:
        """A probe went well."""
        if replica.state not in ("starting", "down"):
            return
        if replica.state == "down":
            self._ejections.reset(replica)
        replica.state, replica.reason = "up", ""
        replica.up_since_s = self._clock.now()
        _log.info("replica %s is up", replica.id)
        self._tell_up(replica)

    def _down(self, replica: Replica, reason: str) -> None:
        """Probes say so. One that starts stays starting: it has never been there; one that drains has no way back."""
        if replica.state == "up":
            _log.warning("replica %s is down: %s", replica.id, reason)
            replica.state = "down"
            replica.signals = None if replica.signals is None else replica.signals.stale()
        if replica.state != "draining":
            replica.reason = reason

    def _tell_up(self, replica: Replica) -> None:
        for listener in self._on_up:
            listener(replica)

    # Changes at run time.

    def add_pool(self, pool: Pool) -> None:
        if pool.name in self._pools:
            raise ConfigError(f"two pools are called {pool.name!r}; a pool's name must be unique.")
        self._pools[pool.name] = pool
        for replica in pool.replicas:
            self._watch(replica)
        self._serving.clear()

    def put_replica(self, pool_name: str, url: str, replica_id: str | None = None) -> Replica:
        """A replica that has been started. One of that id already there gets a new process behind it, perhaps at a new
        address: it starts again, and what was known of the old one is forgotten."""
        pool = self.pool(pool_name)
        fresh = pool.make_replica(url, replica_id)
        known = next((replica for replica in pool.replicas if replica.id == fresh.id), None)
        if known is None:
            pool.replicas.append(fresh)
            self._watch(fresh)
            self._serving.clear()
            return fresh
        self._renew(known, fresh.url)
        return known

    def lost(self, replica: Replica, reason: str) -> None:
        """Its process has ended. Nothing more is to be asked of it until `put_replica`."""
        self._down(replica, reason)
        if replica.state == "starting":
            replica.state = "down"
            replica.reason = reason

    def remove_replica(self, replica: Replica) -> None:
        """At once. Requests that are still running there go on as they can."""
        if replica in replica.pool.replicas:
            replica.pool.replicas.remove(replica)
        if (watch := self._watches.pop(replica, None)) is not None:
            watch.stop()
            self._ejections.remove(replica)
        self._serving.clear()
        for listener in self._on_gone:
            listener(replica)

    async def drain(self, replica: Replica, timeout_s: float) -> bool:
        """No new requests; returns when those that run have ended, or the time is over: whether all ended."""
        replica.state, replica.reason = "draining", "it is being drained"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while replica.in_flight > 0 and _is_draining(replica):  # noqa: ASYNC110 -- an event would cost each request
                    await asyncio.sleep(_DRAIN_POLL_S)
        return replica.in_flight == 0

    async def drain_and_remove(self, replica: Replica, timeout_s: float) -> bool:
        """It stays if it has been put in again meanwhile."""
        is_empty = await self.drain(replica, timeout_s)
        if _is_draining(replica):
            self.remove_replica(replica)
        return is_empty

    def retire(self, replica: Replica, timeout_s: float) -> None:
        """Drains and removes it, in the background."""
        replica.state = "draining"
        task = asyncio.create_task(self.drain_and_remove(replica, timeout_s))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def retire_pool(self, pool: Pool, timeout_s: float) -> None:
        """Its replicas are chosen no more at once; they are watched until the last request has ended."""
        del self._pools[pool.name]
        for replica in list(pool.replicas):
            self.retire(replica, timeout_s)
        self._serving.clear()

    def settings_changed(self) -> None:
        """Somebody has called `take_settings` of pools."""
        self._serving.clear()

    def _watch(self, replica: Replica) -> None:
        watch = HealthWatch(replica, self._health, self._fetch, self._clock, self._up, self._down, self._rng)
        self._watches[replica] = watch
        self._ejections.add(replica)
        if self._is_started:
            watch.start()

    def _renew(self, replica: Replica, url: str) -> None:
        watch = self._watches[replica]
        replica.url = url
        replica.state, replica.reason = "starting", ""
        replica.signals, replica.in_flight_when_scraped, replica.last_answer_s = None, None, None
        self._ejections.reset(replica)
        watch.stop()
        watch.reset()
        if self._is_started:
            watch.start()
        for listener in self._on_gone:
            listener(replica)


def _is_draining(replica: Replica) -> bool:
    return replica.state == "draining"
