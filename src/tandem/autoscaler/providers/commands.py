"""The command line of an engine: our own, or one that the operator wrote with places to fill in."""

from __future__ import annotations

import shlex
import string
import sys
from dataclasses import dataclass

from tandem.autoscaler.providers.base import EngineSpec
from tandem.autoscaler.providers.devices import Placement
from tandem.config.describe import flag_words
from tandem.core.errors import ConfigError

_PLACES = frozenset({"port", "socket", "model", "threads", "memory_share", "pool", "id"})


@dataclass(frozen=True, slots=True)
class Address:
    """Where the engine is to listen: one of the two."""

    port: int | None = None
    socket: str | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.socket}" if self.socket is not None else f"http://127.0.0.1:{self.port}"


def wants_port(spec: EngineSpec) -> bool:
    """Our own engine listens on a Unix socket."""
    return spec.command is not None and "port" in _places(spec.command)


def check_command(command: str) -> None:
    """Raises `ConfigError`, so that a mistake is found before anything is started."""
    places = _places(command)
    if unknown := places - _PLACES:
        allowed = ", ".join(f"{{{place}}}" for place in sorted(_PLACES))
        raise ConfigError(f"command has {{{min(unknown)}}}; it may have {allowed}. Write {{{{ and }}}} for braces.")
    if len(places & {"port", "socket"}) != 1:
        raise ConfigError("command must say where the engine listens, by exactly one of {port} and {socket}.")


def command_line(spec: EngineSpec, instance_id: str, address: Address, placement: Placement) -> list[str]:
    """Split first, filled in afterwards: a value with a space stays one argument, and no shell sees it."""
    if spec.command is None:
        return _own(spec, address, placement)
    values = {
        "port": str(address.port),
        "socket": str(address.socket),
        "model": spec.model,
        "threads": str(len(placement.cores) or 1),
        "memory_share": f"{placement.memory_share:.3g}",
        "pool": spec.pool,
        "id": instance_id,
    }
    return [word.format_map(values) for word in shlex.split(spec.command)]


def _own(spec: EngineSpec, address: Address, placement: Placement) -> list[str]:
    options = dict(spec.engine_options)
    options.setdefault("threads", len(placement.cores))
    options.setdefault("memory_utilization", round(placement.memory_share, 4))
    options.setdefault("device", "cuda" if placement.gpus else "cpu")
    words = [sys.executable, "-m", "tandem.cli.main", "serve", spec.model, "--no-gateway", "--uds", str(address.socket)]
    for name, value in options.items():
        words.extend(flag_words(name, value))
    return words


def _places(command: str) -> set[str]:
    try:
        parsed = [name for word in shlex.split(command) for _, name, _, _ in string.Formatter().parse(word)]
    except ValueError as error:
        raise ConfigError(f"command can't be read: {error}.") from None
    return {name for name in parsed if name is not None}
