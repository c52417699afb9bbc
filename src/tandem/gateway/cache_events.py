"""Asks Tandem's own engines what left their prefix caches, so that routing believes in no prefix that is gone."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

import msgspec

from tandem.gateway.replicas.base import Fetch
from tandem.gateway.replicas.pools import Pools
from tandem.gateway.replicas.replica import Replica
from tandem.gateway.routing.kv_events import CacheFollower
from tandem.gateway.routing.prefix_index import PrefixIndex
from tandem.gateway.upstream.failures import UpstreamFailure
from tandem.protocol.state import KVEventBatch

PERIOD_S: Final = 1.0
_TIMEOUT_S: Final = 5.0
_decoder = msgspec.json.Decoder(KVEventBatch)


class CacheEvents:
    """One for a gateway process. An engine that doesn't answer is asked again; its index ages by what was sent."""

    def __init__(self, pools: Pools, index: PrefixIndex, fetch: Fetch) -> None:
        self._pools = pools
        self._follower = CacheFollower(index)
        self._fetch = fetch
        self._task: asyncio.Task[None] | None = None
        pools.on_gone(lambda replica: self._follower.forget(replica.id))

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while True:
            await asyncio.gather(*(self.ask(replica) for replica in self._pools.all_replicas() if _tells(replica)))
            await asyncio.sleep(PERIOD_S)

    async def ask(self, replica: Replica) -> None:
        """One question to one engine; whatever goes wrong is for the health checks to notice."""
        path = f"/tandem/kv-events?after={self._follower.position(replica.id)}"
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                status, body = await self._fetch(replica, "GET", path, None, _TIMEOUT_S)
            if status == 200:
                block_size = replica.signals.block_size if replica.signals is not None else None
                self._follower.take(replica.id, _decoder.decode(body), block_size or 16)
        except (TimeoutError, OSError, UpstreamFailure, msgspec.DecodeError):
            return


def _tells(replica: Replica) -> bool:
    return replica.pool.engine == "tandem" and replica.state == "up"
