"""Where values come from: flags over environment over tandem.toml over defaults. Every mistake is one clear sentence.

A name that doesn't exist is an error wherever it stands, for a setting that is silently ignored is found out in
production.
"""

from __future__ import annotations

import difflib
import logging
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tandem.config.deployment import TandemConfig
from tandem.config.secrets import is_reference, resolve_secret
from tandem.core.errors import ConfigError

log = logging.getLogger(__name__)
PREFIX = "TANDEM_"
SECRETS = {"api_key": "server", "hash_seed": "engine"}
"""Settings that must not stand in a file or be shown, and the table each belongs to."""
OTHER_VARIABLES = {"TANDEM_CACHE", "TANDEM_CPU_VARIANT", "TANDEM_PREBUILT", "TANDEM_SANITIZE", "TANDEM_URL"}
"""Read elsewhere, by their own names."""
# Kubernetes gives every pod such variables for each service: those of one called "tandem" or "tandem-…" are not ours.
_KUBERNETES = re.compile(r"TANDEM_(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP)(_\w+)?)?)")
Settings = TypeVar("Settings", bound=msgspec.Struct)


def read_file(path: Path) -> dict[str, Any]:
    """The tables of a tandem.toml, keys with dashes turned into keys with underscores. Checked by `check_file`."""
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text.") from error
    try:
        tables: dict[str, Any] = _underscored(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error
    _check_version(path, tables)
    _check_secrets(path, tables)
    return tables


def load_deployment(path: Path) -> TandemConfig:
    """The whole file, typed. Raises `ConfigError` naming the key, and the line where it can be found."""
    tables = read_file(path)
    try:
        return msgspec.convert(tables, TandemConfig)
    except (msgspec.ValidationError, ConfigError) as error:
        raise ConfigError(f"{path}{_line_of(path, str(error))}: {_sentence(str(error))}") from error


def layered(
    kind: type[Settings], file: Mapping[str, Any], environment: Mapping[str, str], flags: Mapping[str, Any]
) -> Settings:
    """One component's settings. `file` is its table, `environment` the whole environment, `flags` those given."""
    values = dict(file)
    values.update(_from_environment(kind, environment))
    values.update(flags)
    try:
        settings = msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(_sentence(str(error))) from error
    given = {name: getattr(settings, name, None) for name in SECRETS}
    found = {name: resolve_secret(value, environment) for name, value in given.items() if value}
    return msgspec.structs.replace(settings, **found) if found else settings


def _from_environment(kind: type[msgspec.Struct], environment: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        variable = PREFIX + field.name.upper()
        text = environment.get(variable)
        if text is None:
            continue
        if text.startswith("tcp://"):
            # Kubernetes sets such variables for a service that is called "tandem"; nobody meant them for us.
            log.warning("%s=%s comes from a Kubernetes service of that name and is ignored.", variable, text)
            continue
        try:
            values[field.name] = msgspec.convert(text, field.type, strict=False)
        except msgspec.ValidationError as error:
            raise ConfigError(f"{variable} is {text!r}: {_sentence(str(error))}") from error
    return values


def check_environment(environment: Mapping[str, str], kinds: Iterable[type[msgspec.Struct]]) -> None:
    """Refuse `TANDEM_…` variables that are no setting: a misspelt TANDEM_API_KEY would leave a server open."""
    known = {PREFIX + field.name.upper() for kind in kinds for field in msgspec.structs.fields(kind)} | OTHER_VARIABLES
    for variable in environment:
        if variable.startswith(PREFIX) and variable not in known and not _KUBERNETES.fullmatch(variable):
            close = difflib.get_close_matches(variable, known, n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            raise ConfigError(f"the environment variable {variable} is no setting.{hint}")


def file_table(tables: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = tables.get(name, {})
    if not isinstance(table, dict):
        raise ConfigError(f"[{name}] must be a table, not {table!r}.")
    return table


def _underscored(value: Any) -> Any:
    if isinstance(value, dict):
        plain = {key.replace("-", "_"): _underscored(inner) for key, inner in value.items()}
        if len(plain) < len(value):
            twice = next(key for key in value if "-" in key and key.replace("-", "_") in value)
            raise ConfigError(f"{twice} is given twice, with dashes and with underscores.")
        return plain
    if isinstance(value, list):
        return [_underscored(inner) for inner in value]
    return value


def _check_version(path: Path, tables: Mapping[str, Any]) -> None:
    if tables.get("version") != 1:
        given = f"version = {tables['version']!r}" if "version" in tables else "no version"
        raise ConfigError(f"{path} has {given}; this Tandem reads version = 1, as the first line.")


def _check_secrets(path: Path, tables: Mapping[str, Any]) -> None:
    for name, table in SECRETS.items():
        value = file_table(tables, table).get(name)
        if isinstance(value, str) and not is_reference(value):
            raise ConfigError(f'{path}: {name} must not stand in the file; write "env:NAME" or "file:PATH" instead.')


def _sentence(message: str) -> str:
    """msgspec's message with the key in front: "Expected `int`, got `str` - at `$.block_size`" is hard to read."""
    text, _, where = message.partition(" - at ")
    key = where.strip("`").removeprefix("$").removeprefix(".")
    unknown = re.search(r"contains unknown field `(.+?)`", text)
    if unknown:
        return f"there is no setting {(key + '.' if key else '') + unknown[1]!r}."
    return f"{key}: {text[0].lower() + text[1:]}." if key else text


def _line_of(path: Path, message: str) -> str:
    """ ":LINE" of the key that a message names, where a line of the file begins with it."""
    names = re.findall(r"`\$?\.?([\w.\[\]]+)`", message)
    key = re.split(r"[.\[\]]+", names[-1])[-1] if names else ""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if key and re.match(rf"\s*{re.escape(key).replace('_', '[-_]')}\s*=", line):
            return f":{number}"
    return ""
