"""`tandem gateway`: the gateway alone, over engines that a tandem.toml or flags name. Needs no torch."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tandem.core.errors import ConfigError

if TYPE_CHECKING:
    from tandem.config.deployment import TandemConfig

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def register(commands: Commands) -> None:
    parser = commands.add_parser(
        "gateway",
        help="one endpoint over many engines",
        usage="tandem gateway (-c tandem.toml | --replica KIND=URL ...) [options]",
        allow_abbrev=False,
    )
    parser.add_argument("-c", "--config", type=Path, metavar="FILE", help="a tandem.toml")
    parser.add_argument(
        "--replica",
        action="append",
        default=[],
        metavar="KIND=URL",
        help="a running engine, such as vllm=http://127.0.0.1:8001; may be repeated",
    )
    parser.add_argument(
        "--replica-api-key", metavar="TEXT", help="the key that those engines ask for: env:NAME or file:PATH"
    )
    parser.add_argument("--host", default=None, metavar="TEXT", help="address to listen on")
    parser.add_argument("--port", default=None, type=int, metavar="N", help="port to listen on; 0 takes a free one")
    parser.add_argument("--policy", default=None, metavar="NAME", help="how a replica is chosen (default: hybrid)")
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    parser.add_argument("--log-format", default="text", choices=("text", "json"))
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from tandem.observability.logs import setup_logging

    setup_logging(args.log_level, args.log_format)
    config = _config(args)
    processes = config.gateway.processes
    if processes == 1:
        return _serve(args, config, reuse_port=False)
    _check_processes(config)
    return _supervise(args, config, processes)


def _config(args: argparse.Namespace) -> TandemConfig:
    from tandem.config.deployment import TandemConfig
    from tandem.config.reading import load_deployment

    if args.config is None and not args.replica:
        raise ConfigError("a gateway needs engines: give a tandem.toml with -c, or --replica KIND=URL.")
    if args.config is not None and args.replica:
        raise ConfigError("give either -c or --replica; in a tandem.toml, engines are [[pool]]s.")
    config = load_deployment(args.config) if args.config is not None else TandemConfig(version=1)
    return _adjusted(args, config)


def _adjusted(args: argparse.Namespace, config: TandemConfig) -> TandemConfig:
    """With what the flags say in place of the file."""
    gateway: dict[str, Any] = {}
    host, _, port = config.gateway.listen.rpartition(":")
    if args.host is not None or args.port is not None:
        gateway["listen"] = f"{args.host or host}:{port if args.port is None else args.port}"
    if args.policy is not None:
        routing = msgspec.to_builtins(config.gateway.routing) | {"policy": args.policy}
        gateway["routing"] = _converted(routing, type(config.gateway.routing), "--policy")
    return msgspec.structs.replace(config, gateway=msgspec.structs.replace(config.gateway, **gateway))


def _converted(values: dict[str, Any], kind: Any, flag: str) -> Any:
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{flag}: {error}.") from error


def _serve(args: argparse.Namespace, config: TandemConfig, *, reuse_port: bool) -> int:
    import uvloop

    from tandem.cli.gateway_process import GatewayProcess
    from tandem.config.secrets import resolve_secret
    from tandem.gateway.discovery import Discovery, parse_replica

    discovery = None
    if args.replica:
        discovery = Discovery([parse_replica(text) for text in args.replica], resolve_secret(args.replica_api_key))

    async def run() -> int:
        return await GatewayProcess(
            config, args.config, discovery=discovery, reuse_port=reuse_port, adjust=partial(_adjusted, args)
        ).run()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


def _check_processes(config: TandemConfig) -> None:
    if config.gateway.listen.endswith(":0"):
        raise ConfigError("several gateway processes share one port, so listen can't be port 0.")
    if any(pool.provider == "process" for pool in config.pool):
        raise ConfigError(
            "several gateway processes can't all start engines; run those by themselves and name their endpoints, or "
            "set processes = 1."
        )


def _supervise(args: argparse.Namespace, config: TandemConfig, processes: int) -> int:
    """Starts so many of us; whoever dies is started again, a signal goes to all."""
    children = {_fork(args, config) for _ in range(processes)}
    is_ending = False

    def forward(number: int, frame: object) -> None:
        nonlocal is_ending
        is_ending = is_ending or number != signal.SIGHUP
        for child in children:
            os.kill(child, number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, forward)
    while children:
        child, status = os.wait()
        children.discard(child)
        if not is_ending:
            print(f"tandem: a gateway process ended with {os.waitstatus_to_exitcode(status)}", file=sys.stderr)
            if os.waitstatus_to_exitcode(status) in (1, 2):
                is_ending = True  # it can't start: neither will the next
                forward(signal.SIGTERM, None)
            else:
                children.add(_fork(args, config))
    return 0


def _fork(args: argparse.Namespace, config: TandemConfig) -> int:
    child = os.fork()
    if child:
        return child
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    try:
        status = _serve(args, config, reuse_port=True)
    except ConfigError as error:
        print(f"tandem: {error.message}", file=sys.stderr)
        status = 2
    except BaseException as error:
        print(f"tandem: the gateway process failed: {error}", file=sys.stderr)
        status = 3
    sys.stderr.flush()
    os._exit(status)
