"""Engines as processes of this machine: as many of each pool as wanted, on their share of its devices.

They end with this process, however it ends (see `launcher.py`). Ready or not is for others to find out.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tandem.autoscaler.providers.base import BeforeStop, EngineSpec, EventKind, Instance, Listener
from tandem.autoscaler.providers.commands import Address, check_command, command_line, wants_port
from tandem.autoscaler.providers.devices import Placement, divide, part
from tandem.autoscaler.providers.supervised import Launch, Supervised
from tandem.config.gateway_replicas import ProcessConfig
from tandem.core.clock import Clock, SystemClock
from tandem.core.errors import ConfigError, NotFound

_MAX_SOCKET_PATH: Final = 100
"""Linux takes 107 bytes."""
_REMEMBERED_PORTS: Final = 1000


@dataclass(slots=True)
class _PoolOf:
    spec: EngineSpec
    placement: Placement
    most: int
    """Among so many instances its devices are divided."""
    running: dict[int, tuple[Supervised, asyncio.Task[None]]] = field(default_factory=dict)
    """number → the instance, and its `run`."""


def print_line(instance_id: str, line: str) -> None:
    """The default: to our own standard error, with who said it."""
    print(f"[{instance_id}] {line}", file=sys.stderr, flush=True)


class ProcessProvider:
    """`close` must be awaited at the end; should it not be, the engines end all the same, only less politely."""

    def __init__(
        self, specs: Iterable[EngineSpec], *, config: ProcessConfig | None = None, clock: Clock | None = None,
        max_instances: dict[str, int] | None = None, write_line: Callable[[str, str], None] = print_line,
    ) -> None:  # fmt: skip
        """`max_instances`: pool → how many its devices are divided among; else one. Raises `ConfigError`."""
        self._config = config or ProcessConfig()
        self._clock = clock or SystemClock()
        self._write_line = write_line
        self._listeners: list[Listener] = []
        self._before_stop: BeforeStop | None = None
        self._ports: set[int] = set()
        self._folder: Path | None = None
        self._lock = asyncio.Lock()
        specs = list(specs)
        for spec in specs:
            if spec.command is not None:
                check_command(spec.command)
        placements = divide(specs, self._config.memory_share)
        most = max_instances or {}
        self._pools = {
            spec.pool: _PoolOf(spec, placements[spec.pool], max(1, most.get(spec.pool, 1))) for spec in specs
        }

    def on_event(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def before_stop(self, drain: BeforeStop) -> None:
        """Awaited before an instance is told to end, at most `drain_timeout_s`."""
        self._before_stop = drain

    def instances(self, pool: str) -> Sequence[Instance]:
        return [supervised.instance for supervised, _ in self._of(pool).running.values()]

    async def scale(self, pool: str, num_instances: int) -> None:
        """Starts are begun, and stops done, when this returns. The newest are stopped first."""
        mine = self._of(pool)
        if not 0 <= num_instances <= mine.most:
            raise ConfigError(
                f"pool {pool} can't have {num_instances} engines: its devices are divided among {mine.most}. "
                f"Ask for 0 to {mine.most}, or give it more devices."
            )
        async with self._lock:
            surplus = sorted(mine.running)[num_instances:]
            for number in range(mine.most):
                if len(mine.running) < num_instances and number not in mine.running:
                    self._begin(mine, number)
            await asyncio.gather(*(self._end(mine, number) for number in surplus))

    async def restart(self, instance_id: str) -> None:
        """Drains, stops and starts one again: for a new version, or when it is known to be ill."""
        async with self._lock:
            for mine in self._pools.values():
                for number, (supervised, _) in list(mine.running.items()):
                    if supervised.instance.id == instance_id:
                        await self._end(mine, number)
                        self._begin(mine, number)
                        return
        raise NotFound(f"No engine process is called {instance_id!r:.80}.")

    async def close(self) -> None:
        """All at the same time; nothing runs any more when this returns."""
        async with self._lock:
            ends = [self._end(mine, number, drains=False) for mine in self._pools.values() for number in mine.running]
            await asyncio.gather(*ends)
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder = None

    def _of(self, pool: str) -> _PoolOf:
        try:
            return self._pools[pool]
        except KeyError:
            raise NotFound(f"No pool of processes is called {pool!r:.80}.") from None

    def _begin(self, mine: _PoolOf, number: int) -> None:
        instance = Instance(f"{mine.spec.pool}-{number}", mine.spec.pool)

        def prepare() -> Launch:
            return self._prepare(mine, number, instance)

        supervised = Supervised(instance, prepare, self._config, self._clock, self._tell, self._write_line)
        mine.running[number] = supervised, asyncio.create_task(supervised.run())

    async def _end(self, mine: _PoolOf, number: int, *, drains: bool = True) -> None:
        supervised, task = mine.running[number]
        instance = supervised.instance
        if drains and self._before_stop is not None and instance.state == "running":
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._before_stop(instance), self._config.drain_timeout_s)
        await supervised.stop()
        await task
        del mine.running[number]
        instance.state = "stopped"
        self._tell("stopped", instance)

    def _tell(self, kind: EventKind, instance: Instance) -> None:
        for listener in self._listeners:
            listener(kind, instance)

    def _prepare(self, mine: _PoolOf, number: int, instance: Instance) -> Launch:
        placement = part(mine.placement, number, mine.most)
        address = (
            Address(port=self._free_port()) if wants_port(mine.spec) else Address(socket=self._socket(instance.id))
        )
        command = command_line(mine.spec, instance.id, address, placement)
        environment = placement.environment() | dict(mine.spec.environment)
        return Launch(command, address.url, environment, placement)

    def _free_port(self) -> int:
        """One that the system isn't using, and that we haven't given out: an engine may take minutes to listen."""
        while True:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port: int = probe.getsockname()[1]
            if port not in self._ports:
                if len(self._ports) >= _REMEMBERED_PORTS:
                    self._ports.clear()
                self._ports.add(port)
                return port

    def _socket(self, instance_id: str) -> str:
        """In a folder that only this user can enter. What an earlier process left is removed."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="tandem-"))
        path = self._folder / f"{re.sub(r'[^A-Za-z0-9_-]', '_', instance_id)[-40:]}.sock"
        if len(str(path).encode()) > _MAX_SOCKET_PATH:
            raise ConfigError(f"The path of the socket {path} is too long; set TMPDIR to a shorter folder.")
        path.unlink(missing_ok=True)
        return str(path)
