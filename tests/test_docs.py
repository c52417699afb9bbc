"""The documentation names every setting, metric and command that exists; links and examples lead somewhere.

`python -m tests.test_docs` prints the tables that docs/configuration.md has to hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import inspect
from prometheus_client import generate_latest

from tandem.config.build import BuildOptions
from tandem.config.deployment import BatchGoal, GatewayConfig, Goals, InteractiveGoal, PoolConfig, TandemConfig
from tandem.config.engine import EngineConfig
from tandem.config.gateway_admission import AdmissionConfig, QueueLimits, WaitingRoom
from tandem.config.gateway_http import GatewayHttpConfig
from tandem.config.gateway_replicas import CircuitConfig, HealthConfig, ProcessConfig
from tandem.config.gateway_routing import RoutingConfig
from tandem.config.gateway_store import BatchesConfig, KeyConfig, StoreConfig
from tandem.config.gateway_upstream import UpstreamConfig
from tandem.config.reading import load_deployment
from tandem.config.server import ServerConfig
from tandem.gateway.assembly import Assembly
from tandem.observability.metrics import EngineMetrics

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "examples/README.md", *(ROOT / "docs").glob("*.md")])
SECTIONS: dict[str, type[msgspec.Struct]] = {
    "`[engine]`": EngineConfig,
    "`[server]`": ServerConfig,
    "`tandem build`": BuildOptions,
    "`[gateway]`": GatewayConfig,
    "`[gateway.http]`": GatewayHttpConfig,
    "`[gateway.upstream]`": UpstreamConfig,
    "`[gateway.health]`": HealthConfig,
    "`[gateway.circuit]`": CircuitConfig,
    "`[gateway.process]`": ProcessConfig,
    "`[gateway.routing]`": RoutingConfig,
    "`[gateway.admission]`": AdmissionConfig,
    "`[gateway.store]`": StoreConfig,
    "`[gateway.batches]`": BatchesConfig,
    "`[[gateway.key]]`": KeyConfig,
    "`[goals.interactive]`": InteractiveGoal,
    "`[goals.batch]`": BatchGoal,
    "`[[pool]]`": PoolConfig,
}
"""Heading in docs/configuration.md → the class that it describes."""
CONTAINERS = {TandemConfig, Goals, WaitingRoom, QueueLimits}
"""Without a section of their own: tables of tables. The bounds of the waiting rooms have one table for all four."""
ROOMS = ("none_up.interactive", "none_up.batch", "all_full.interactive", "all_full.batch")


def setting_rows(kind: type[msgspec.Struct]) -> list[str]:
    """A line of a table for each setting of a class; nested tables and classes are left out."""
    defaults = {field.name: field.default for field in msgspec.structs.fields(kind)}
    rows = []
    for field in _fields(kind):
        description, choices, is_table = _described(field.type)
        if not is_table:
            allowed = f" One of {', '.join(f'`{choice}`' for choice in sorted(choices))}." if choices else ""
            rows.append(f"| `{field.name}` | {_shown(defaults[field.name])} | {description}{allowed} |")
    return rows


def room_rows() -> list[str]:
    """A line for each bound of the waiting rooms, with the four defaults."""
    rooms = [getattr(getattr(AdmissionConfig(), room), name) for room, name in (r.split(".") for r in ROOMS)]
    return [
        f"| `{field.name}` | {' | '.join(_shown(getattr(room, field.name)) for room in rooms)} "
        f"| {_described(field.type)[0]} |"
        for field in _fields(QueueLimits)
    ]


def _fields(kind: type[msgspec.Struct]) -> tuple[inspect.Field, ...]:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return info.fields


def _described(found: inspect.Type) -> tuple[str, tuple[str, ...], bool]:
    """(description, the values allowed, whether it is a table of its own)"""
    description = ""
    while not isinstance(found, inspect.LiteralType):
        if isinstance(found, inspect.Metadata):
            description = (found.extra_json_schema or {}).get("description", description)
            found = found.type
        elif isinstance(found, inspect.UnionType):
            found = next(t for t in found.types if not isinstance(t, inspect.NoneType))
        else:
            return description, (), isinstance(found, inspect.StructType) or _is_list_of_tables(found)
    return description, tuple(str(value) for value in found.values), False


def _is_list_of_tables(found: inspect.Type) -> bool:
    return isinstance(found, inspect.VarTupleType) and isinstance(found.item_type, inspect.StructType)


def _shown(default: Any) -> str:
    """As the page writes it; nothing for none."""
    if default is msgspec.NODEFAULT or default in (None, "", (), {}):
        return ""
    if isinstance(default, bool):
        return "on" if default else "off"
    if isinstance(default, tuple):
        return ", ".join(f"`{value}`" for value in default)
    return f"`{default}`"


def _section(heading: str) -> str:
    page = (ROOT / "docs/configuration.md").read_text()
    begin = re.search(rf"^#+ {re.escape(heading)}\n", page, re.MULTILINE)
    assert begin is not None, f"docs/configuration.md has no heading {heading}"
    return re.split(r"^#", page[begin.end() :], maxsplit=1, flags=re.MULTILINE)[0]


def _classes_of(kind: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    """The class, and all that its settings are made of."""
    yield kind
    pending = [field.type for field in _fields(kind)]
    while pending:
        found = pending.pop()
        if isinstance(found, inspect.StructType):
            yield from _classes_of(found.cls)
        for name in ("type", "item_type"):
            pending += [inner] if (inner := getattr(found, name, None)) is not None else []
        pending += getattr(found, "types", ())


@pytest.mark.parametrize("heading", SECTIONS)
def test_every_setting_is_in_its_section(heading: str) -> None:
    section = _section(heading)
    assert [row for row in setting_rows(SECTIONS[heading]) if row not in section] == []


def test_every_bound_of_the_waiting_rooms_is_documented() -> None:
    section = _section("`[gateway.admission]`")
    assert [row for row in room_rows() if row not in section] == []


def test_every_class_of_settings_has_a_section() -> None:
    assert set(_classes_of(TandemConfig)) - CONTAINERS <= set(SECTIONS.values())


def test_every_metric_of_an_engine_is_documented() -> None:
    names = _metric_names(EngineMetrics("m").render())
    assert len(names) > 15
    assert _undocumented(names) == []


def test_every_metric_of_the_gateway_is_documented(tmp_path: Path) -> None:
    pool = PoolConfig(name="p", model="m", provider="endpoints", endpoints=("http://127.0.0.1:1",))
    settings = GatewayConfig(database=f"sqlite:///{tmp_path}/t.db", store=StoreConfig(data_dir=str(tmp_path)))
    gateway = Assembly(TandemConfig(version=1, gateway=settings, pool=(pool,))).gateway
    names = _metric_names(generate_latest(gateway.registry))
    assert len(names) >= 9
    assert _undocumented(names) == []


def test_every_metric_in_the_gateway_s_source_is_documented() -> None:
    """Also those that are made from parts, or only where something runs: by the beginning of their names."""
    sources = "".join(path.read_text() for path in (ROOT / "src/tandem/gateway").rglob("*.py"))
    page = (ROOT / "docs/observability.md").read_text()
    begun = set(re.findall(r"""["']tandem_gateway_\w+""", sources))
    assert sorted(name[1:] for name in begun if f"`{name[1:]}" not in page) == []


def _metric_names(exposed: bytes) -> list[str]:
    lines = exposed.decode().splitlines()
    return [line.split()[2] for line in lines if line.startswith("# HELP") and not line.split()[2].endswith("_created")]


def _undocumented(names: list[str]) -> list[str]:
    page = (ROOT / "docs/observability.md").read_text()
    return [name for name in names if f"`{name}`" not in page]


def test_every_library_is_in_the_dependencies_page() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = [*project["project"]["dependencies"], *project["project"]["optional-dependencies"]["engine"]]
    listed += project["dependency-groups"]["dev"]
    page = (ROOT / "docs/dependencies.md").read_text()
    names = {re.split(r"[\[<>=; ]", requirement)[0] for requirement in listed}
    assert sorted(name for name in names if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", page)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_example_is_listed() -> None:
    listed = (ROOT / "examples/README.md").read_text()
    examples = [path.name for path in (ROOT / "examples").iterdir() if path.suffix in (".py", ".toml")]
    assert [name for name in examples if f"({name})" not in listed] == []


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.toml")), ids=lambda p: p.name)
def test_example_configurations_are_right(path: Path) -> None:
    assert load_deployment(path).pool


@pytest.mark.parametrize("page", PAGES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_configurations_in_the_text_are_right(page: Path, tmp_path: Path) -> None:
    for number, text in enumerate(re.findall(r"^```toml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)):
        file = tmp_path / f"{number}.toml"
        file.write_text(text if "version = 1" in text else f"version = 1\n{text}")
        load_deployment(file)


def _print_tables() -> None:
    for heading, kind in SECTIONS.items():
        print(f"\n## {heading}\n\n| setting | default | meaning |\n|---|---|---|", *setting_rows(kind), sep="\n")
        if kind is AdmissionConfig:
            head = f"\n| setting | {' | '.join(f'`{room}`' for room in ROOMS)} | meaning |"
            print(head, "|---|---|---|---|---|---|", *room_rows(), sep="\n")


if __name__ == "__main__":
    _print_tables()
