"""tandem.toml, version 1: a gateway, its goals and its pools; and the defaults of engines and their fronts.

Only the shape is here; `reading.py` says where values come from and what is wrong with them.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tandem.config.engine import EngineConfig
from tandem.config.gateway_admission import AdmissionConfig
from tandem.config.gateway_http import GatewayHttpConfig
from tandem.config.gateway_replicas import CircuitConfig, HealthConfig, ProcessConfig
from tandem.config.gateway_routing import RoutingConfig
from tandem.config.gateway_store import BatchesConfig, KeyConfig, StoreConfig
from tandem.config.gateway_upstream import UpstreamConfig
from tandem.config.server import ServerConfig
from tandem.core.errors import ConfigError
from tandem.core.types import ServiceClass

EngineKind = Literal["tandem", "vllm", "sglang", "tensorrt-llm", "tgi", "llama.cpp", "openvino", "openai"]
Provider = Literal["process", "endpoints", "kubernetes", "ray"]


class InteractiveGoal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What interactive requests are promised."""

    ttft_s: Annotated[float, Meta(gt=0, description="Time to first token, in seconds.")] = 1.0
    tpot_s: Annotated[float, Meta(gt=0, description="Time per output token after the first, in seconds.")] = 0.05


class BatchGoal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What batch requests are promised."""

    deadline_h: Annotated[float, Meta(gt=0, description="Time from upload to the last answer, in hours.")] = 24.0


class Goals(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The goal of each service class."""

    interactive: InteractiveGoal = InteractiveGoal()
    batch: BatchGoal = BatchGoal()


class GatewayConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the gateway listens, where its state lives, and the settings of its parts."""

    listen: Annotated[str, Meta(description="host:port to listen on.")] = "127.0.0.1:8000"
    database: Annotated[
        str, Meta(description="SQLAlchemy address of the state: sqlite:///FILE on one machine, else postgresql://…")
    ] = "sqlite:///tandem.db"
    processes: Annotated[
        int, Meta(ge=1, le=64, description="Gateway processes on the one port; more than one needs a shared database.")
    ] = 1
    currency: Annotated[str, Meta(min_length=3, max_length=3, description="Of all prices, by ISO 4217.")] = "USD"
    price_version: Annotated[
        str, Meta(min_length=1, max_length=32, description="Names this edition of the prices in the ledger.")
    ] = "1"
    http: GatewayHttpConfig = GatewayHttpConfig()
    upstream: UpstreamConfig = UpstreamConfig()
    health: HealthConfig = HealthConfig()
    circuit: CircuitConfig = CircuitConfig()
    process: ProcessConfig = ProcessConfig()
    routing: RoutingConfig = RoutingConfig()
    admission: AdmissionConfig = AdmissionConfig()
    store: StoreConfig = StoreConfig()
    batches: BatchesConfig = BatchesConfig()
    key: Annotated[
        tuple[KeyConfig, ...], Meta(description="API keys. With none, and none in the database, everybody may come in.")
    ] = ()

    def __post_init__(self) -> None:
        host, _, port = self.listen.rpartition(":")
        if not host or not port.isdigit() or int(port) > 65535:
            raise ConfigError(f"listen is {self.listen!r}; it must be host:port, such as 127.0.0.1:8000.")
        names = [key.name for key in self.key]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ConfigError(f"two keys are called {min(twice)!r}; a key's name must be unique.")


class PoolConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Replicas of one model on one kind of engine."""

    name: Annotated[str, Meta(min_length=1, max_length=63, description="Unique; used in metrics and in the ledger.")]
    model: Annotated[str, Meta(min_length=1, description="The model its replicas serve.")]
    engine: Annotated[EngineKind, Meta(description="Kind of engine, which says how to talk to it.")] = "tandem"
    provider: Annotated[Provider, Meta(description="Who starts and stops replicas.")] = "process"
    endpoints: Annotated[tuple[str, ...], Meta(description="Addresses of replicas that somebody else runs.")] = ()
    devices: Annotated[tuple[str, ...], Meta(description='What replicas may use: "cpu:0-1", "cuda:0".')] = ()
    roles: Annotated[tuple[ServiceClass, ...], Meta(min_length=1, description="Service classes it takes.")] = (
        "interactive",
        "batch",
    )
    price_per_hour: Annotated[float, Meta(ge=0, description="What one replica costs an hour.")] = 0.0
    max_output_tokens: Annotated[int, Meta(ge=1, description="Cap on the tokens of one answer.")] | None = None
    aliases: Annotated[
        tuple[str, ...], Meta(description="Names that clients use; pools may share one. Default: the model's own.")
    ] = ()
    precision: Annotated[
        str | None, Meta(description="Of its weights, for classes that allow only some. Default: as the engine says.")
    ] = None
    max_concurrency: (
        Annotated[int, Meta(ge=1, description="Requests at once in one replica. Default: a quarter over its seats.")]
        | None
    ) = None
    has_priorities: Annotated[
        bool, Meta(description="Its engines were started with priority scheduling (vLLM, SGLang).")
    ] = False
    api_key: Annotated[str, Meta(description="Where the key of its engines stands: env:NAME or file:PATH.")] | None = (
        None
    )
    replicas: Annotated[int, Meta(ge=0, description="How many the process provider keeps running.")] = 1
    command: (
        Annotated[
            str,
            Meta(min_length=1, description="Starts a replica, with {port} or {socket}, {model}. Default: our engine."),
        ]
        | None
    ) = None
    memory_share: (
        Annotated[float, Meta(gt=0, le=1, description="Of its devices' memory. Default: what is left, evenly.")] | None
    ) = None
    engine_options: Annotated[
        dict[str, bool | int | float | str], Meta(description="Settings of [engine] that differ in this pool.")
    ] = {}

    def __post_init__(self) -> None:
        # Checked now: a setting that doesn't exist must not wait for the pool's first start to be found out.
        msgspec.convert(self.engine_options, EngineConfig)


class TandemConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    version: Annotated[Literal[1], Meta(description="Of the file's format.")]
    gateway: GatewayConfig = GatewayConfig()
    goals: Goals = Goals()
    engine: EngineConfig = EngineConfig()
    server: ServerConfig = ServerConfig()
    pool: tuple[PoolConfig, ...] = ()

    def __post_init__(self) -> None:
        names = [pool.name for pool in self.pool]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ConfigError(f"two pools are called {min(twice)!r}; a pool's name must be unique.")
