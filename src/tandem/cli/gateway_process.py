"""One gateway process from its configuration: the assembly, the engines it starts, its port, signals and reloads.

Knows both the gateway and the process provider, which don't know each other.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tandem.autoscaler.providers.base import EngineSpec, EventKind, Instance, spec_of
from tandem.autoscaler.providers.process import ProcessProvider
from tandem.config.deployment import PoolConfig, TandemConfig
from tandem.config.reading import load_deployment
from tandem.core.errors import ConfigError
from tandem.gateway.assembly import Assembly, check_pools
from tandem.gateway.discovery import Discovery
from tandem.gateway.replicas.provided import Provided
from tandem.gateway.serving import serve

WATCH_FILE_S: Final = 2.0
_log = logging.getLogger(__name__)


class GatewayProcess:
    """`run` returns when a signal ended it."""

    def __init__(
        self,
        config: TandemConfig,
        path: Path | None = None,
        *,
        discovery: Discovery | None = None,
        reuse_port: bool = False,
        write_line: Callable[[str, str], None] | None = None,
        ends_with: str | None = None,
        adjust: Callable[[TandemConfig], TandemConfig] = lambda config: config,
    ) -> None:
        """`path`: the file that reloads read; `adjust`: what flags change in it. `discovery`: replicas named by flags
        alone. `ends_with`: a pool without whose engine there is no sense in going on: when it can't be started, `run`
        returns 1. Raises `ConfigError`."""
        self._path = path
        self._adjust = adjust
        self._reuse_port = reuse_port
        self._discovery = discovery
        if discovery is None:
            check_pools(config)
        self.assembly = Assembly(config)
        self._provider = _provider(config, write_line)
        self._modified = _modified(path)
        self._stop = asyncio.Event()
        self._ends_with = ends_with
        self._status = 0
        self._was_ready = False

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self.reload)
        await self.assembly.start()
        tasks = [asyncio.create_task(self._watch_file())]
        try:
            serving = await serve(self.assembly.app(), *self._address(), reuse_port=self._reuse_port)
            print(f"listening on {serving.address}", file=sys.stderr, flush=True)
            tasks += [asyncio.create_task(self._start_engines()), asyncio.create_task(self._say_ready())]
            if self._discovery is not None:
                tasks.append(asyncio.create_task(self._discovery.run(self.assembly.pools)))
            await self._stop.wait()
            await serving.close()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._provider is not None:
                await self._provider.close()
            await self.assembly.close()
        return self._status

    def reload(self) -> None:
        """Reads the file again; one with a mistake changes nothing."""
        if self._path is None:
            _log.warning("there is no configuration file to reload")
            return
        try:
            config = self._adjust(load_deployment(self._path))
            check_pools(config)
            kept = _engines_kept(self.assembly.config, config) + self.assembly.reload(config)
        except ConfigError as error:
            _log.error("the configuration stays as it was: %s", error.message)
            return
        for sentence in kept:
            _log.warning("%s", sentence)
        _log.info("the configuration was reloaded")

    def _address(self) -> tuple[str, int]:
        host, _, port = self.assembly.config.gateway.listen.rpartition(":")
        return host.strip("[]"), int(port)

    async def _start_engines(self) -> None:
        if self._provider is None:
            return
        provided = Provided(self.assembly.pools, self.assembly.config.gateway.process.drain_timeout_s)
        self._provider.on_event(provided.event)
        self._provider.before_stop(provided.drain)
        self._provider.on_event(self._look_at)
        for pool in self.assembly.config.pool:
            if pool.provider == "process":
                await self._provider.scale(pool.name, pool.replicas)

    def _look_at(self, kind: EventKind, instance: Instance) -> None:
        if kind == "ended" and instance.pool == self._ends_with and not self._was_ready:
            _log.error("the engine can't be started: %s", instance.reason)
            self._status = 1
            self._stop.set()

    async def _say_ready(self) -> None:
        """Once, when the first replica takes requests."""
        is_up = asyncio.Event()
        self.assembly.pools.on_up(lambda replica: is_up.set())
        if any(replica.state == "up" for replica in self.assembly.pools.all_replicas()):
            is_up.set()
        await is_up.wait()
        self._was_ready = True
        print("ready", file=sys.stderr, flush=True)

    async def _watch_file(self) -> None:
        while True:
            await asyncio.sleep(WATCH_FILE_S)
            modified = _modified(self._path)
            if modified is not None and modified != self._modified:
                self._modified = modified
                self.reload()


def _engines_kept(old: TandemConfig, new: TandemConfig) -> list[str]:
    """What a reload doesn't do with engine processes, in sentences."""
    before = {pool.name: pool for pool in old.pool if pool.provider == "process"}
    after = {pool.name: pool for pool in new.pool if pool.provider == "process"}
    return [
        f"the engines of the pool {name!r} have changed; they are started and stopped at the next start"
        for name in sorted(before.keys() | after.keys())
        if name not in before
        or name not in after
        or spec_of(before[name]) != spec_of(after[name])
        or before[name].replicas != after[name].replicas
    ]


def _provider(config: TandemConfig, write_line: Callable[[str, str], None] | None) -> ProcessProvider | None:
    pools = [pool for pool in config.pool if pool.provider == "process"]
    if not pools:
        return None
    most = {pool.name: max(1, pool.replicas) for pool in pools}
    specs = [_spec(pool) for pool in pools]
    if write_line is None:
        return ProcessProvider(specs, config=config.gateway.process, max_instances=most)
    return ProcessProvider(specs, config=config.gateway.process, max_instances=most, write_line=write_line)


def _spec(pool: PoolConfig) -> EngineSpec:
    if pool.command is None and pool.engine != "tandem":
        raise ConfigError(
            f"the pool {pool.name!r} is to start {pool.engine} engines, and nothing says how; give its command, or "
            "endpoints of engines that run already."
        )
    return spec_of(pool)


def _modified(path: Path | None) -> int | None:
    try:
        return None if path is None else path.stat().st_mtime_ns
    except OSError:
        return None
