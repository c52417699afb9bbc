"""`tandem check`: is a tandem.toml right? Says the line, the key and what is allowed."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def register(commands: Commands) -> None:
    parser = commands.add_parser(
        "check", help="check a tandem.toml", usage="tandem check tandem.toml", allow_abbrev=False
    )
    parser.add_argument("file", type=Path, help="the configuration")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from tandem.cli.gateway_process import GatewayProcess
    from tandem.config.reading import load_deployment

    config = load_deployment(args.file)
    if config.pool:
        GatewayProcess(config, args.file)  # opens nothing, and finds what only the parts can know
    pools = ", ".join(f"{pool.name} ({pool.engine}, {pool.model})" for pool in config.pool) or "none"
    print(f"{args.file} is right. Pools: {pools}.")
    return 0
