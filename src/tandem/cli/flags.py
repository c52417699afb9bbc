"""Flags made from configuration classes, so that a setting is written down once."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tandem.config.describe import Setting, settings_of
from tandem.config.engine import EngineConfig
from tandem.config.reading import check_environment, file_table, layered, load_deployment, read_file
from tandem.config.server import ServerConfig

Settings = TypeVar("Settings", bound=msgspec.Struct)


def add_settings(parser: argparse.ArgumentParser, kind: type[msgspec.Struct], title: str, skip: set[str]) -> None:
    """A flag for each setting. A flag that isn't given leaves nothing behind, so that lower layers show through."""
    group = parser.add_argument_group(title)
    for setting in settings_of(kind):
        if setting.name not in skip:
            _add_flag(group, setting)


def _add_flag(group: argparse._ArgumentGroup, setting: Setting) -> None:
    default = "" if setting.default in (None, "") else f" (default: {setting.default})"
    text = setting.description.replace("%", "%%") + default.replace("True", "on").replace("False", "off")
    if setting.kind is bool:
        group.add_argument(setting.flag, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=text)
    else:
        metavar = None if setting.choices else {int: "N", float: "X", str: "TEXT"}[setting.kind]
        group.add_argument(
            setting.flag,
            type=setting.kind,
            choices=setting.choices,
            default=argparse.SUPPRESS,
            metavar=metavar,
            help=text,
        )


def add_config_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-c", "--config", type=Path, metavar="FILE", help="A tandem.toml; flags win over it.")


def collect(args: argparse.Namespace, kind: type[Settings], table: str) -> Settings:
    """The settings in force: flags over environment over the file's table over defaults."""
    file: dict[str, Any] = {}
    path: Path | None = getattr(args, "config", None)
    if path is not None:
        # Checked as a whole first, so that a mistake anywhere in the file is found now.
        load_deployment(path)
        file = file_table(read_file(path), table)
    check_environment(os.environ, (EngineConfig, ServerConfig))
    names = {setting.name for setting in settings_of(kind)}
    flags = {name: value for name, value in vars(args).items() if name in names and value is not None}
    return layered(kind, file, os.environ, flags)
