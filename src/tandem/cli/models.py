"""`tandem pull` and `tandem models`: what can be had by name, and what is here already."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

DEFAULT_MODEL = "smollm2-135m"


def register(commands: Commands) -> None:
    pull = commands.add_parser("pull", help="fetch a model into the cache", allow_abbrev=False)
    pull.add_argument("model", nargs="?", default=DEFAULT_MODEL, help="catalogue name or hub id (default: %(default)s)")
    pull.add_argument("--verify", action="store_true", help="read a cached model again and compare its SHA-256")
    pull.set_defaults(run=_pull)
    models = commands.add_parser("models", help="list the models that are here or can be had", allow_abbrev=False)
    models.set_defaults(run=_list)


def _pull(args: argparse.Namespace) -> int:
    from tandem.engine.loading.progress import ConsoleProgress
    from tandem.engine.loading.sources import resolve

    print(resolve(args.model, progress=ConsoleProgress(), verify=args.verify))
    return 0


def _list(args: argparse.Namespace) -> int:
    from tandem.engine.loading.catalog import CATALOG
    from tandem.engine.loading.sources import list_models

    cached = list_models()
    rows = [(m.name, m.size_bytes, "cached", m.license, str(m.path)) for m in cached]
    have = {m.name for m in cached}
    rows += [(e.name, e.size_bytes, "can be pulled", e.license, "") for e in CATALOG.values() if e.name not in have]
    table = Table(box=None, pad_edge=False)
    for column in ("NAME", "SIZE", "STATE", "LICENCE", "PATH"):
        table.add_column(column, justify="right" if column == "SIZE" else "left", no_wrap=True)
    for name, size_bytes, state, licence, path in sorted(rows):
        table.add_row(name, f"{size_bytes / 1e6:.0f} MB", state, licence, path)
    # A pipe has no width: print whole lines there.
    console = Console()
    console.print(table, soft_wrap=not console.is_terminal, width=None if console.is_terminal else 500)
    return 0
