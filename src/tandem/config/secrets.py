"""Secrets stand in files and in the environment, never in tandem.toml: there, only where to find them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from tandem.core.errors import ConfigError


def resolve_secret(value: str | None, environment: Mapping[str, str] = os.environ) -> str | None:
    """The secret that `env:NAME` or `file:PATH` refers to; any other text is the secret itself."""
    if value is None:
        return None
    kind, _, reference = value.partition(":")
    if kind == "env":
        if not environment.get(reference):
            raise ConfigError(f"the environment variable {reference}, named as {value}, is not set.")
        return environment[reference]
    if kind == "file":
        return _read(Path(reference))
    if not value.strip():
        raise ConfigError("a secret is empty; leave it out for none.")
    # A line's end from a file or a shell is never part of a key.
    return value.strip()


def is_reference(value: str) -> bool:
    return value.startswith(("env:", "file:"))


def _read(path: Path) -> str:
    try:
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the secret in {path} can't be read: {error}.") from error
    if not text:
        raise ConfigError(f"the secret in {path} is empty.")
    return text
