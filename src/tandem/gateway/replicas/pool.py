"""Replicas of one model on one kind of engine: what the configuration says of them, and which there are just now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tandem.config.deployment import EngineKind, PoolConfig
from tandem.core.types import ServiceClass
from tandem.gateway.replicas.adapters import make_adapter
from tandem.gateway.replicas.base import AdapterOptions
from tandem.gateway.replicas.replica import Replica


@dataclass(slots=True, eq=False)
class Pool:
    """Settings may change at a reload (`take_settings`); name, model and engine may not: that is another pool."""

    name: str
    model: str
    """As its engines know it; what is sent upstream."""
    engine: EngineKind = "tandem"
    aliases: tuple[str, ...] = ()
    """Names clients use; none given: the model's own. One alias may name several pools."""
    roles: tuple[ServiceClass, ...] = ("interactive", "batch")
    price_per_hour: float = 0.0
    """Of one replica."""
    max_concurrency: int | None = None
    """Requests at once in one replica; None: a quarter more than the engine seats, or 128."""
    max_output_tokens: int | None = None
    api_key: str | None = None
    """Sent to its engines; never shown to anybody."""
    options: AdapterOptions = field(default_factory=AdapterOptions)
    replicas: list[Replica] = field(default_factory=list)

    @property
    def names(self) -> tuple[str, ...]:
        return self.aliases or (self.model,)

    def make_replica(self, url: str, replica_id: str | None = None) -> Replica:
        """Not yet one of the pool's: `Pools.add_replica` puts it in."""
        url = url.rstrip("/")
        return Replica(replica_id or _replica_id(self.name, url), self, make_adapter(self.engine, self.options), url)

    def take_settings(self, other: Pool) -> None:
        """All that can change while replicas run."""
        self.aliases = other.aliases
        self.roles = other.roles
        self.price_per_hour = other.price_per_hour
        self.max_concurrency = other.max_concurrency
        self.max_output_tokens = other.max_output_tokens
        self.api_key = other.api_key
        if self.options != other.options:
            self.options = other.options
            for replica in self.replicas:
                replica.adapter = make_adapter(self.engine, self.options)

    def is_same_as(self, other: Pool) -> bool:
        """The same engines could serve both."""
        return (self.name, self.model, self.engine) == (other.name, other.model, other.engine)


def make_pool(
    config: PoolConfig,
    *,
    aliases: Sequence[str] = (),
    api_key: str | None = None,
    max_concurrency: int | None = None,
    has_priorities: bool = False,
) -> Pool:
    """With a replica for each of the endpoints; a provider adds its own when they run."""
    pool = Pool(
        name=config.name,
        model=str(config.engine_options.get("served_model_name", config.model)),
        engine=config.engine,
        aliases=tuple(aliases) or (config.model,),
        roles=config.roles,
        price_per_hour=config.price_per_hour,
        max_concurrency=max_concurrency,
        max_output_tokens=config.max_output_tokens,
        api_key=api_key,
        options=AdapterOptions(has_priorities=has_priorities),
    )
    pool.replicas.extend(pool.make_replica(url) for url in config.endpoints)
    return pool


def _replica_id(pool_name: str, url: str) -> str:
    """No credentials and no path: this goes into headers and metrics."""
    parts = urlsplit(url)
    place = parts.path.rsplit("/", 1)[-1] if parts.scheme == "unix" else parts.netloc.rpartition("@")[2]
    return f"{pool_name}/{place}"
