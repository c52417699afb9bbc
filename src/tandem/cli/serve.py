"""`tandem serve`: one engine behind the gateway, or, with --no-gateway, the engine alone."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from tandem.cli.flags import add_config_flag, add_settings, collect
from tandem.cli.models import DEFAULT_MODEL
from tandem.config.engine import EngineConfig
from tandem.config.reading import SECRETS
from tandem.config.server import ServerConfig
from tandem.core.errors import TandemError

if TYPE_CHECKING:
    from tandem.engine.core_client import CoreClient

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def register(commands: Commands) -> None:
    parser = commands.add_parser(
        "serve", help="serve a model over the OpenAI API", usage="tandem serve [MODEL] [options]", allow_abbrev=False
    )
    parser.add_argument("model", nargs="?", default=argparse.SUPPRESS, help=f"the model (default: {DEFAULT_MODEL})")
    add_config_flag(parser)
    parser.add_argument(
        "--no-gateway", action="store_true", help="Serve the engine itself: no keys, batches, ledger or waiting rooms."
    )
    parser.add_argument("--print-config", action="store_true", help="Print the settings in force, and end.")
    add_settings(parser, ServerConfig, "server", skip=set())
    add_settings(parser, EngineConfig, "engine", skip={"model"})
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    server = collect(args, ServerConfig, "server")
    engine = collect(args, EngineConfig, "engine")
    if args.print_config:
        print(json.dumps({"server": _shown(server), "engine": _shown(engine)}, indent=2))
        return 0
    if args.no_gateway or server.uds is not None:
        return _serve(server, engine)
    from tandem.cli.serve_gateway import serve_behind_gateway

    return serve_behind_gateway(server, engine)


def _shown(settings: msgspec.Struct) -> dict[str, Any]:
    """Settings as they may be printed."""
    plain: dict[str, Any] = msgspec.to_builtins(settings)
    return {name: "(set)" if name in SECRETS and value else value for name, value in plain.items()}


def _serve(server: ServerConfig, engine: EngineConfig) -> int:
    from tandem.engine.core_client import CoreClient
    from tandem.engine.front.local_text import LocalText
    from tandem.engine.loading.opening import open_checkpoint
    from tandem.engine.loading.progress import ConsoleProgress
    from tandem.engine.loading.sources import resolve
    from tandem.engine.server import run_server
    from tandem.observability.logs import setup_logging

    setup_logging(server.log_level, server.log_format)
    # Fetched and opened here, where a person can see the progress and a mistake ends the command with one sentence.
    checkpoint = open_checkpoint(resolve(engine.model, progress=ConsoleProgress()))
    announcing: set[asyncio.Task[None]] = set()

    async def connect() -> CoreClient:
        client = CoreClient()
        await client.start(engine)
        announcing.add(asyncio.create_task(_announce(client)))
        return client

    text = LocalText(checkpoint.text, server, engine.chat_template)
    return run_server(connect, text, server, engine)


async def _announce(client: CoreClient) -> None:
    """Say what was loaded and how the memory is divided; a failure is logged by the server itself."""
    try:
        ready = await client.wait_ready()
    except TandemError:
        return
    for line in ready.summary:
        print(line, file=sys.stderr)
    print("ready", file=sys.stderr)
