"""What starts and stops the engines of a pool. One implementation a file; who calls it doesn't see which it is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from tandem.config.deployment import EngineKind, PoolConfig

InstanceState = Literal["starting", "running", "waiting", "stopping", "stopped"]
"""`waiting`: it ended, and is started again after a while. `running` says that a process runs, not that it is ready:
that is for whoever probes it."""
EventKind = Literal["started", "ended", "stopped"]


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """The engines of one pool: what to run, and on what."""

    pool: str
    model: str
    kind: EngineKind = "tandem"
    command: str | None = None
    """A command line with {port} or {socket}, {model}, {threads}, {memory_share}; None: our own engine."""
    devices: tuple[str, ...] = ()
    """"cpu:0-1", "cuda:0"; none: whatever the other pools of the machine leave."""
    memory_share: float | None = None
    """Of its device's memory, 0..1; None: what is left, divided evenly."""
    environment: Mapping[str, str] = field(default_factory=dict)
    engine_options: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    """Of our own engine: setting → value."""


def spec_of(config: PoolConfig, environment: Mapping[str, str] | None = None) -> EngineSpec:
    """What a pool of tandem.toml has its provider run."""
    return EngineSpec(
        pool=config.name,
        model=config.model,
        kind=config.engine,
        command=config.command,
        devices=config.devices,
        memory_share=config.memory_share,
        environment=dict(environment or {}),
        engine_options=config.engine_options,
    )


@dataclass(slots=True, eq=False)
class Instance:
    """One engine process, over all its restarts."""

    id: str
    """Pool and number: the replica's id."""
    pool: str
    state: InstanceState = "starting"
    url: str = ""
    """http://127.0.0.1:port or unix:///path. May change with a restart."""
    pid: int | None = None
    """Of the process group."""
    num_starts: int = 0
    num_crashes_in_row: int = 0
    """Ends without our wish, each before it had run for long."""
    is_crash_looping: bool = False
    reason: str = ""
    """Why it doesn't run, in words, with the last line it wrote."""
    started_s: float = 0.0
    last_lines: list[str] = field(default_factory=list)
    """Of what it wrote last; for people."""


Listener = Callable[[EventKind, Instance], None]
"""Called from the event loop: a process started (again), ended without our wish, or was stopped for good."""
BeforeStop = Callable[[Instance], Awaitable[object]]
"""Awaited before a process is told to end: the place to drain its replica."""


class Provider(Protocol):
    """Makes it so that a pool has as many engines as wanted, and keeps it so."""

    async def scale(self, pool: str, num_instances: int) -> None:
        """Start or stop until there are so many. Returns when starts have begun and stops are done."""
        ...

    def instances(self, pool: str) -> Sequence[Instance]: ...

    def on_event(self, listener: Listener) -> None: ...

    async def close(self) -> None:
        """Stop everything that it started."""
        ...
