"""Where pip would look for packages, and through what: a company's mirror, its certificate, its proxy. Fetches nothing.

The model comes over the way that the administrators already opened for pip. Documented at
https://pip.pypa.io/en/stable/topics/configuration/: environment over PIP_CONFIG_FILE, virtual environment, user and
machine.
"""

from __future__ import annotations

import configparser
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tandem.core.errors import ConfigError

PYPI = "https://pypi.org/simple"
SECTIONS = ("global", "download")
"""Of pip's configuration files; the second wins, as it would for `pip download`."""


@dataclass(frozen=True, slots=True)
class PipSettings:
    """What concerns us of pip's configuration."""

    index_urls: tuple[str, ...] = (PYPI,)
    """Asked in this order. May hold a user's name and password: don't print them."""
    cert: str | None = None
    """A file with certificate authorities, instead of the system's."""
    proxy: str | None = None
    """None: as `https_proxy` and its kin say."""


def read_pip_settings(environ: Mapping[str, str] | None = None) -> PipSettings:
    """From the environment (default: the process's) and pip's files. Raises `ConfigError` for a malformed file."""
    environ = os.environ if environ is None else environ
    options: dict[str, str] = {}
    for path in _config_files(environ):
        options |= _read_file(path)
    options |= {name: environ[key] for name, key in _ENVIRONMENT.items() if environ.get(key)}
    urls = [options.get("index-url", PYPI), *options.get("extra-index-url", "").split()]
    # An index may be a folder; a model as large as these is hardly kept in one.
    remote = (url.rstrip("/") for url in urls if url.startswith(("http://", "https://")))
    return PipSettings(tuple(dict.fromkeys(remote)), options.get("cert"), options.get("proxy"))


_ENVIRONMENT = {
    "index-url": "PIP_INDEX_URL",
    "extra-index-url": "PIP_EXTRA_INDEX_URL",
    "cert": "PIP_CERT",
    "proxy": "PIP_PROXY",
}


def _config_files(environ: Mapping[str, str]) -> list[Path]:
    """Least important first."""
    named = environ.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return []
    home = Path(environ.get("HOME", "~")).expanduser()
    shared = environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":")
    return [
        *(Path(folder) / "pip/pip.conf" for folder in reversed(shared) if folder),
        Path("/etc/pip.conf"),
        home / ".pip/pip.conf",
        Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip/pip.conf",
        Path(sys.prefix) / "pip.conf",
        *([Path(named)] if named else []),
    ]


def _read_file(path: Path) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError) as error:
        raise ConfigError(f"pip's configuration file {path} can't be read: {error}.") from error
    options: dict[str, str] = {}
    for section in SECTIONS:
        if parser.has_section(section):
            options |= {key.replace("_", "-"): value for key, value in parser.items(section) if value}
    return options
