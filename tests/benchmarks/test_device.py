"""The device script runs through on a machine without one, and a part that fails doesn't take the others along."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from benchmarks.device.__main__ import Parts

ROOT = Path(__file__).parents[2]
PARTS = ["checks", "floors", "paged", "tables", "products", "compiled bf16", "compiled fp8", "compiled int4"]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="the package triton is not installed")
def test_a_dry_run_measures_every_part(tmp_path: Path) -> None:
    output = tmp_path / "device.json"
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.device", "--dry-run", "--output", str(output)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    found = json.loads(output.read_text())
    assert [name for name in found if name in PARTS or "error" in str(found[name])] == PARTS
    assert [check["passes"] for check in found["checks"]] == [True, True]
    for name in ("paged", "compiled bf16", "compiled fp8", "compiled int4"):
        assert [row["batch"] for row in found[name]["decode"]] == [1, 3]
        assert all(row["floor_ms"] > 0 for row in found[name]["prefill"])
    assert {row["kind"] for row in found["products"]} == {"int8", "int4x2", "fp8"}
    assert found["tables"][0]["gather_ms"] > 0


def test_a_part_that_fails_is_recorded_and_the_rest_goes_on(tmp_path: Path) -> None:
    output = tmp_path / "parts.json"
    parts = Parts(1.0, output)

    def fail() -> None:
        raise RuntimeError("no such kernel")

    assert parts.run("first", 0, fail) is None
    assert parts.run("second", 0, lambda: [1]) == [1]
    assert parts.run("third", 3600, lambda: [2]) is None
    found = json.loads(output.read_text())
    assert found["first"] == {"error": "RuntimeError: no such kernel"}
    assert found["second"] == [1]
    assert "it takes about 3600 s" in found["third"]["skipped"]
    assert parts.failed


def test_a_part_ends_when_the_time_is_up() -> None:
    parts = Parts(0.2 / 60, None)
    assert parts.run("slow", 0, lambda: time.sleep(20)) is None
    assert parts.found["slow"] == {"error": "TimeoutError: the time was up"}
