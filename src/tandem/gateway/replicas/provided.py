"""Replicas that a provider starts and stops: what happens to a process becomes what happens to a replica.

The provider is known here only by what it tells. To wire the two: `provider.on_event(provided.event)` and
`provider.before_stop(provided.drain)`.
"""

from __future__ import annotations

from typing import Literal, Protocol

from tandem.gateway.replicas.pools import Pools


class Engine(Protocol):
    """An engine process."""

    @property
    def id(self) -> str: ...
    @property
    def pool(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def reason(self) -> str: ...


class Provided:
    """Of one provider."""

    def __init__(self, pools: Pools, drain_timeout_s: float) -> None:
        self._pools = pools
        self._drain_timeout_s = drain_timeout_s

    def event(self, kind: Literal["started", "ended", "stopped"], engine: Engine) -> None:
        if kind == "started":
            self._pools.put_replica(engine.pool, engine.url, engine.id)
        elif (replica := self._pools.find(engine.id)) is None:
            return
        elif kind == "ended":
            self._pools.lost(replica, engine.reason)
        else:
            self._pools.remove_replica(replica)

    async def drain(self, engine: Engine) -> None:
        if (replica := self._pools.find(engine.id)) is not None:
            await self._pools.drain(replica, self._drain_timeout_s)
