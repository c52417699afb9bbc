"""What `tandem serve` runs: the gateway in this process, and one engine of ours behind it, on a Unix socket."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from tandem.config.deployment import GatewayConfig, PoolConfig, TandemConfig
from tandem.config.describe import flag_words
from tandem.config.engine import EngineConfig
from tandem.config.gateway_http import GatewayHttpConfig
from tandem.config.gateway_replicas import HealthConfig, ProcessConfig
from tandem.config.gateway_store import KeyConfig, StoreConfig
from tandem.config.server import ServerConfig
from tandem.core.errors import ConfigError

POOL = "local"
_KEY_VARIABLE = "SERVED_API_KEY"
_NOT_THE_ENGINES = {"host", "port", "uds", "api_key", "max_body_mib"}
"""Settings of [server] that are the gateway's here."""


def serve_behind_gateway(server: ServerConfig, engine: EngineConfig) -> int:
    """Ends when a signal says so."""
    from tandem.cli.gateway_process import GatewayProcess
    from tandem.engine.loading.opening import open_checkpoint
    from tandem.engine.loading.progress import ConsoleProgress
    from tandem.engine.loading.sources import resolve
    from tandem.observability.logs import setup_logging

    setup_logging(server.log_level, server.log_format)
    # Fetched and opened here, where a person can see the progress and a mistake ends the command with one sentence.
    open_checkpoint(resolve(engine.model, progress=ConsoleProgress()))
    config = deployment(server, engine)

    async def run() -> int:
        return await GatewayProcess(config, write_line=_print, ends_with=POOL).run()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


def deployment(server: ServerConfig, engine: EngineConfig) -> TandemConfig:
    """The configuration of a gateway over this one engine."""
    state = _state_folder() / f"serve-{server.port}"
    keys: tuple[KeyConfig, ...] = ()
    if server.api_key is not None:
        os.environ[_KEY_VARIABLE] = server.api_key
        keys = (KeyConfig(name="serve", key=f"env:{_KEY_VARIABLE}", admin=True),)
    host = f"[{server.host}]" if ":" in server.host else server.host
    gateway = GatewayConfig(
        listen=f"{host}:{server.port}",
        database=f"sqlite:///{state}/tandem.db",
        http=GatewayHttpConfig(max_body_mib=server.max_body_mib, shutdown_timeout_s=server.shutdown_timeout_s),
        health=HealthConfig(probe_period_s=0.5),
        process=ProcessConfig(stop_timeout_s=server.shutdown_timeout_s),
        store=StoreConfig(data_dir=str(state)),
        key=keys,
    )
    pool = PoolConfig(
        name=POOL,
        model=engine.public_name,
        provider="process",
        command=_command(server, engine),
        max_concurrency=engine.max_num_seqs + engine.max_queued_requests,
    )
    return TandemConfig(version=1, gateway=gateway, pool=(pool,))


def _command(server: ServerConfig, engine: EngineConfig) -> str:
    """The same command without the gateway. Braces are doubled: the provider fills in those of {socket}."""
    words = [sys.executable, "-m", "tandem.cli.main", "serve", engine.model, "--no-gateway"]
    words += [*_flags(engine, {"model"}), *_flags(server, _NOT_THE_ENGINES)]
    return shlex.join(words).replace("{", "{{").replace("}", "}}") + " --uds {socket}"


def _flags(settings: msgspec.Struct, left_out: set[str]) -> list[str]:
    """Those that differ from the defaults."""
    words: list[str] = []
    for field in msgspec.structs.fields(settings):
        value: Any = getattr(settings, field.name)
        if field.name in left_out or value == field.default:
            continue
        words += flag_words(field.name, value)
    return words


def _state_folder() -> Path:
    """Where the ledger and the batches of `tandem serve` are kept: not in whatever folder it was started in."""
    given = os.environ.get("XDG_STATE_HOME")
    folder = (Path(given) if given else Path.home() / ".local/state") / "tandem"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{folder} can't be made: {error.strerror or error}. Set XDG_STATE_HOME to a folder that can be written, "
            "or serve without keeping state: --no-gateway."
        ) from error
    return folder


def _print(instance_id: str, line: str) -> None:
    """There is one engine only: its lines need no name. That it listens and is ready, the gateway says."""
    if not line.startswith("listening on") and line != "ready":
        print(line, file=sys.stderr, flush=True)
