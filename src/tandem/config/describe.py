"""The settings of a class as data: names, types, defaults and descriptions, for help texts and for documentation."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from msgspec import inspect


class Setting(NamedTuple):
    name: str
    kind: type[bool] | type[int] | type[float] | type[str]
    choices: tuple[str, ...] | None
    default: Any
    description: str

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")


def flag_words(name: str, value: bool | float | str) -> list[str]:
    """A setting as words of a command line; of a bool, --NAME or --no-NAME."""
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    return [f"--{flag}", str(value)]


def settings_of(kind: type[msgspec.Struct]) -> list[Setting]:
    """The plain settings (not the nested tables) of a configuration class, in its own order."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    found = []
    for field in info.fields:
        inner, description = _unwrap(field.type)
        plain = _plain_type(inner)
        if plain is not None:
            choices = tuple(str(v) for v in inner.values) if isinstance(inner, inspect.LiteralType) else None
            default = None if field.default is msgspec.NODEFAULT else field.default
            found.append(Setting(field.name, plain, choices, default, description))
    return found


def _unwrap(found: inspect.Type) -> tuple[inspect.Type, str]:
    """The type inside `Annotated[X, …] | None`, and its description."""
    description = ""
    while True:
        if isinstance(found, inspect.Metadata):
            description = (found.extra_json_schema or {}).get("description", description)
            found = found.type
        elif isinstance(found, inspect.UnionType):
            found = next(t for t in found.types if not isinstance(t, inspect.NoneType))
        else:
            return found, description


def _plain_type(found: inspect.Type) -> type[bool] | type[int] | type[float] | type[str] | None:
    if isinstance(found, inspect.BoolType):
        return bool
    if isinstance(found, inspect.IntType):
        return int
    if isinstance(found, inspect.FloatType):
        return float
    return str if isinstance(found, inspect.StrType | inspect.LiteralType) else None
