"""Replicas that were named by their address alone: asks each which models it serves, until it says, and makes pools."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Final, cast, get_args

import msgspec

from tandem.config.deployment import EngineKind
from tandem.config.gateway_upstream import UpstreamConfig
from tandem.core.clock import SystemClock
from tandem.core.errors import ConfigError
from tandem.gateway.replicas.fetch import upstream_fetch
from tandem.gateway.replicas.pool import Pool
from tandem.gateway.replicas.pools import Pools
from tandem.gateway.replicas.replica import Replica
from tandem.gateway.upstream.client import UpstreamClient
from tandem.gateway.upstream.failures import UpstreamFailure
from tandem.protocol.models import ModelList

RETRY_S: Final = 2.0
_TIMEOUT_S: Final = 5.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Named:
    """`KIND=URL`, as on the command line."""

    kind: EngineKind
    url: str


def parse_replica(text: str) -> Named:
    """Raises `ConfigError`."""
    kind, separator, url = text.partition("=")
    kinds = get_args(EngineKind)
    if not separator or kind not in kinds or not url.startswith(("http://", "https://", "unix://")):
        raise ConfigError(
            f"--replica {text!r:.120} can't be read; write KIND=URL, such as vllm=http://127.0.0.1:8001. Kinds: "
            f"{', '.join(kinds)}."
        )
    return Named(cast(EngineKind, kind), url.rstrip("/"))


class Discovery:
    """One for a gateway process. Replicas of the same kind and model become one pool."""

    def __init__(self, named: list[Named], api_key: str | None = None) -> None:
        self._named = named
        self._api_key = api_key
        self._client = UpstreamClient(UpstreamConfig(), SystemClock())

    async def run(self, pools: Pools) -> None:
        """Until each has said what it serves."""
        try:
            await asyncio.gather(*(self._find(one, pools) for one in self._named))
        finally:
            await self._client.close()

    async def _find(self, named: Named, pools: Pools) -> None:
        is_told = False
        while True:
            try:
                models = await self._ask(named)
                break
            except (TimeoutError, OSError, UpstreamFailure, msgspec.DecodeError, ValueError) as error:
                if not is_told:
                    _log.warning("%s doesn't say which models it serves, and is asked again: %s", named.url, error)
                    is_told = True
                await asyncio.sleep(RETRY_S)
        for model in models:
            self._add(named, model, pools)

    async def _ask(self, named: Named) -> list[str]:
        probe = self._probe(named)
        path = probe.adapter.path("/v1/models")
        async with asyncio.timeout(_TIMEOUT_S):
            status, body = await upstream_fetch(self._client)(probe, "GET", path, None, _TIMEOUT_S)
        if status != 200:
            raise ValueError(f"{path} answers {status}")
        models = [model.id for model in msgspec.json.decode(body, type=ModelList).data]
        if not models:
            raise ValueError(f"{path} lists no model")
        return models

    def _probe(self, named: Named) -> Replica:
        return Pool(name="discovery", model="", engine=named.kind, api_key=self._api_key).make_replica(named.url)

    def _add(self, named: Named, model: str, pools: Pools) -> None:
        name = f"{named.kind}/{model}"
        if all(pool.name != name for pool in pools.pools):
            pools.add_pool(Pool(name=name, model=model, engine=named.kind, api_key=self._api_key))
        pools.put_replica(name, named.url)
        _log.info("%s serves %s", named.url, model)
