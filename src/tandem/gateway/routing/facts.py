"""What routing must know of a pool: its price, its kind, and what it holds. Filled from the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from tandem.config.deployment import EngineKind, PoolConfig
from tandem.perfmodel.priors import DeviceKind, device_kind

if TYPE_CHECKING:
    from tandem.gateway.replicas.pool import Pool

PoolKind = Literal["paged", "compiled"]
DEFAULT_CONCURRENCY: Final = 128
_COMPILED: Final[frozenset[EngineKind]] = frozenset({"tensorrt-llm", "openvino"})


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """One pool's."""

    price_per_hour: float = 0.0
    """Of one replica."""
    kind: PoolKind = "paged"
    precision: str | None = None
    """"bfloat16", "int8", "int4", …; None: not said, which every class accepts."""
    device: DeviceKind = "unknown"
    max_concurrency: int | None = None
    """Requests at once in one replica. None: a quarter more than the engine seats, or 128."""
    takes_interactive: bool = True
    """Its roles include interactive: batch leaves room for it."""
    has_priorities: bool = False
    """The engine itself serves interactive requests before waiting batch ones."""


def facts_of(config: PoolConfig) -> PoolFacts:
    """As the configuration has them."""
    return PoolFacts(
        price_per_hour=config.price_per_hour,
        kind=_kind(config),
        precision=config.precision,
        device=device_kind(config.devices),
        max_concurrency=config.max_concurrency,
        takes_interactive="interactive" in config.roles,
        has_priorities=config.has_priorities or config.engine == "tandem",
    )


def facts_of_pool(pool: Pool) -> PoolFacts:
    """Of a pool that no configuration file names, such as one given by flags."""
    return PoolFacts(
        price_per_hour=pool.price_per_hour,
        kind="compiled" if pool.engine in _COMPILED else "paged",
        max_concurrency=pool.max_concurrency,
        takes_interactive="interactive" in pool.roles,
        has_priorities=pool.options.has_priorities or pool.engine == "tandem",
    )


def _kind(config: PoolConfig) -> PoolKind:
    return "compiled" if config.engine in _COMPILED or config.model.endswith(".engine") else "paged"
