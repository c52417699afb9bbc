"""The house rule: imports run downward only, and some parts import neither torch nor sockets. Read from the source."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
# A package may import those of its own row only if it is the same package, and any package of a row above it.
ROWS = [
    {"core"},
    {"config"},
    {"protocol"},
    {"traffic", "perfmodel", "observability"},
    {"engine", "gateway", "autoscaler", "loadtest"},
    {"compiler", "planner"},
    {"dashboard", "deploy"},
    {"cli"},
]
RANK = {package: rank for rank, row in enumerate(ROWS) for package in row}


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> set[str]:
    """Modules of tandem that a file imports anywhere, also inside functions; not those for type checking only."""
    tree = ast.parse(path.read_text())
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return {name for name in found if name.split(".")[0] == "tandem"}


FILES = sorted(SOURCE.rglob("*.py"))


def test_there_is_something_to_check() -> None:
    assert len(FILES) > 50


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_imports_run_downward(path: Path) -> None:
    own = [*module_name(path).split("."), ""][1]
    if own == "":
        return  # tandem/__init__.py is the front door: it loads LLM when asked for.
    for name in imports(path):
        other = [*name.split("."), ""][1]
        if other not in ("", own):
            assert RANK[other] < RANK[own], f"{module_name(path)} imports {name}, which is not below it"


def test_the_gateway_side_never_imports_the_engine() -> None:
    for path in FILES:
        package = [*module_name(path).split("."), ""][1]
        if package in ("gateway", "autoscaler", "loadtest"):
            assert not any(name.startswith("tandem.engine") for name in imports(path))


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import tandem", {"torch", "numpy", "socket", "msgspec"}),
        ("import tandem.core.request, tandem.core.errors, tandem.core.clock", {"torch", "msgspec", "socket"}),
        ("import tandem.engine.scheduler, tandem.engine.kvcache.manager", {"torch", "numpy", "socket", "aiohttp"}),
        ("import tandem.config.reading, tandem.config.describe", {"torch", "numpy", "aiohttp"}),
        ("import tandem.cli.main; tandem.cli.main._parser()", {"torch", "numpy", "aiohttp", "tokenizers"}),
        ("import tandem.engine.server, tandem.engine.core_client", {"torch"}),
        ("import tandem.engine.loading.opening, tandem.engine.text.tokenizer", {"torch", "transformers"}),
    ],
)
def test_light_parts_stay_light(statement: str, absent: set[str]) -> None:
    script = f"{statement}\nimport sys; print(*sorted(set(sys.modules) & {absent!r}))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.split() == []
