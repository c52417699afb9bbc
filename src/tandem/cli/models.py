"""`tandem pull` and `tandem models`: what can be had by name, and what is here already."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

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
    have = {model.name for model in cached}
    rows = [(m.name, _megabytes(m.size_bytes), m.license or "-", str(m.path)) for m in cached]
    rows += [
        (e.name, _megabytes(e.size_bytes), e.license, f"not here yet: tandem pull {e.name}")
        for e in CATALOG.values()
        if e.name not in have
    ]
    _print_columns([("NAME", "SIZE", "LICENCE", "PATH"), *sorted(rows)])
    return 0


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.0f} MB"


def _print_columns(rows: list[tuple[str, ...]]) -> None:
    """Whole lines, whatever the terminal's width: they are meant to be piped, too."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    for row in rows:
        print("  ".join([cell.ljust(width) for cell, width in zip(row, widths, strict=False)] + [row[-1]]))
