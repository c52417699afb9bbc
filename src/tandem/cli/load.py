"""What `bench` and `stress` share: flags of the target, keys, files to write, progress, and Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from tandem.cli.flags import add_settings
from tandem.config.reading import layered
from tandem.config.secrets import resolve_secret
from tandem.core.errors import ConfigError
from tandem.loadtest.settings import TargetSettings

if TYPE_CHECKING:
    from tandem.loadtest.bench import Watch

Settings = TypeVar("Settings", bound=msgspec.Struct)
Result = TypeVar("Result")


def add_target_flags(parser: argparse.ArgumentParser) -> None:
    add_settings(parser, TargetSettings, "target", skip=set())
    text = "Bearer token, env:NAME or file:PATH; once for each URL where they differ. Default: $OPENAI_API_KEY."
    parser.add_argument("--api-key", action="append", metavar="KEY", help=text)


def given(args: argparse.Namespace, kind: type[Settings]) -> Settings:
    """Settings from flags alone: a load test takes nothing from the environment or tandem.toml."""
    names = kind.__struct_fields__
    return layered(kind, {}, {}, {name: value for name, value in vars(args).items() if name in names})


def keys_of(args: argparse.Namespace) -> list[str]:
    if args.api_key:
        return [key for given in args.api_key if (key := resolve_secret(given, os.environ))]
    key = os.environ.get("OPENAI_API_KEY")
    return [key] if key else []


def writable(*paths: Path | None) -> None:
    """Said before a long test rather than after it."""
    for path in paths:
        if path is not None and not path.parent.is_dir():
            raise ConfigError(f"{path} can't be written: there is no folder {path.parent}.")


def make_watch() -> Watch:
    from rich.console import Console

    from tandem.loadtest.live import live_watch

    return live_watch(Console(stderr=True))


class Interrupts:
    """Ctrl-C once: stop measuring and report what there is. Before anything is measured, or twice: end at once."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.has_begun = False
        self._task = asyncio.current_task()

    def press(self) -> None:
        if (self.stop.is_set() or not self.has_begun) and self._task is not None:
            self._task.cancel()
        self.stop.set()


def interruptible(work: Callable[[Interrupts], Awaitable[Result]]) -> Result | None:
    """Runs it in an event loop of its own; None where it was interrupted with nothing to show."""
    import uvloop

    async def main() -> Result:
        interrupts = Interrupts()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, interrupts.press)
        return await work(interrupts)

    try:
        return uvloop.run(main())
    except asyncio.CancelledError:
        return None
