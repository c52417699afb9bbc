"""The documentation names every setting and every metric that exists."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from tandem.config.deployment import BatchGoal, GatewayConfig, InteractiveGoal, PoolConfig
from tandem.config.describe import settings_of
from tandem.config.engine import EngineConfig
from tandem.config.server import ServerConfig
from tandem.observability.metrics import EngineMetrics

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("kind", [EngineConfig, ServerConfig, GatewayConfig, InteractiveGoal, BatchGoal, PoolConfig])
def test_every_setting_is_in_the_configuration_page(kind: type[msgspec.Struct]) -> None:
    page = (ROOT / "docs/configuration.md").read_text()
    missing = [s.name for s in settings_of(kind) if f"| `{s.name}` |" not in page or s.description not in page]
    assert missing == []


def test_every_metric_is_in_the_observability_page() -> None:
    page = (ROOT / "docs/observability.md").read_text()
    exposed = EngineMetrics("m").render().decode()
    names = [line.split()[2] for line in exposed.splitlines() if line.startswith("# HELP")]
    assert len(names) > 15
    assert [name for name in names if f"`{name}`" not in page and not name.endswith("_created")] == []


@pytest.mark.parametrize("page", sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")]), ids=lambda p: p.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:

    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
