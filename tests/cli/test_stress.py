"""`tandem stress` as a command, against an endpoint whose limit is known."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.cli.fake_endpoint import FakeEndpoint
from tests.cli.serving import run_tandem
from tests.loadtest.fake_server import Piece, plain, streamed

SHORT = ("--step", "0.5", "--hold", "1", "--overload", "1", "--recover", "1", "--input-len", "16", "--output-len", "4")


def stress(url: str, *arguments: str) -> Any:
    env = {name: value for name, value in os.environ.items() if name != "OPENAI_API_KEY"}
    found = run_tandem("stress", url, *SHORT, *arguments, env=env)
    assert "Traceback" not in found.stderr
    return found


def test_an_endpoint_that_keeps_its_goals_passes(tmp_path: Path) -> None:
    out, page = tmp_path / "s.json", tmp_path / "s.html"
    with FakeEndpoint(streamed()) as endpoint:
        flags = ("--knee", "30", "--goals", "ttft:60000", "--soak", "1", "--pid", str(os.getpid()))
        found = stress(endpoint.url, *flags, "--json", str(out), "--html", str(page))
    assert found.returncode == 0, found.stdout + found.stderr
    assert "Verdict: passed" in found.stdout
    for name in ("the knee holds", "no collapse beyond the knee", "recovery", "errors in the soak", "memory"):
        assert f"passed  {name}" in found.stdout
    document = json.loads(out.read_text())
    assert document["passed"]
    assert [phase["name"] for phase in document["result"]["phases"]] == ["at the knee", "beyond the knee", "back"]
    assert page.read_text().startswith("<!doctype html>")


def test_an_endpoint_that_fails_under_load_does_not_pass() -> None:
    def script(path: str, body: dict[str, Any]) -> Iterator[Piece]:
        if len(endpoint.server.bodies) > 45:  # about when the load rises beyond the knee; it never comes back
            return iter([plain(500, {"error": {"message": "out of memory"}})])
        return streamed()(path, body)

    with FakeEndpoint(script) as endpoint:
        found = stress(endpoint.url, "--knee", "30", "--goals", "ttft:60000")
    assert found.returncode == 1
    assert "FAILED  no collapse beyond the knee" in found.stdout
    assert "FAILED  recovery: the goals were not met again" in found.stdout
    assert "× HTTP 500: out of memory" in found.stdout


def test_the_knee_is_sought_where_it_is_not_given() -> None:
    open_now = [0]

    def script(path: str, body: dict[str, Any]) -> Iterator[Piece]:
        """Twenty at a time, each 0.1 s: 200 a second; whoever comes beyond that is refused."""
        if open_now[0] >= 20:
            yield plain(503, {"error": {"message": "full"}})
            return
        open_now[0] += 1
        yield from streamed(first_s=0.1)(path, body)
        open_now[0] -= 1

    with FakeEndpoint(script) as endpoint:
        found = stress(endpoint.url, "--goals", "ttft:60000")
    assert "Knee: " in found.stdout
    knee = float(found.stdout.split("Knee: ")[1].split()[0])
    assert 20 < knee < 400
    assert "of the requests" in found.stdout.splitlines()[0]


def test_goals_that_no_load_meets_are_said_in_one_sentence() -> None:
    with FakeEndpoint(streamed(first_s=0.02)) as endpoint:
        found = stress(endpoint.url, "--goals", "ttft:0.001", "--step", "0.2")
    assert found.returncode == 1
    assert "the goals are not met at any load" in found.stderr


def test_a_process_that_is_not_there_is_said() -> None:
    found = stress("http://127.0.0.1:9", "--pid", "999999999")
    assert found.returncode == 1
    assert "there is no process 999999999" in found.stderr
