"""`tandem bench` as a command: flags, files, words and exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.fake_endpoint import FakeEndpoint
from tests.cli.serving import Served, run_tandem
from tests.loadtest.fake_server import Piece, plain, streamed

SMALL = ("--num-requests", "6", "--input-len", "16", "--output-len", "4")
ENV = {name: value for name, value in os.environ.items() if name != "OPENAI_API_KEY"}


def bench(*arguments: str) -> Any:
    found = run_tandem("bench", *arguments, env=ENV)
    assert "Traceback" not in found.stderr
    return found


def test_a_run_reports_in_words_and_in_all_files(tmp_path: Path) -> None:
    files = [tmp_path / f"r.{kind}" for kind in ("json", "html", "csv")]
    with FakeEndpoint(streamed()) as endpoint:
        flags = [part for file in files for part in (f"--{file.suffix[1:]}", str(file))]
        found = bench(endpoint.url, *SMALL, "--rate", "100", "--goodput", "ttft:60000", "tpot:60000", *flags)
    assert found.returncode == 0, found.stderr
    for expected in (
        "Successful requests:                       6",
        "Request rate configured (RPS):             100.00",
        "Requests within goals (%):                 100.0",
        "Total generated tokens:                    24",
        "Median TTFT (ms):",
        "P99 E2EL (ms):",
    ):
        assert expected in found.stdout
    document = json.loads(files[0].read_text())
    assert (document["model"], document["partial"], document["version"]) == ("fake", False, 1)
    assert document["runs"][0]["summary"]["ok"] == 6
    assert files[1].read_text().startswith("<!doctype html>")
    assert len(files[2].read_text().splitlines()) == 7


def test_a_sweep_has_a_line_for_each_load_and_two_reports_compare(tmp_path: Path) -> None:
    with FakeEndpoint(streamed()) as endpoint:
        for name in ("a", "b"):
            found = bench(endpoint.url, *SMALL, "--sweep", "50,100", "--json", str(tmp_path / f"{name}.json"))
            assert found.returncode == 0, found.stderr
            assert "Knee: 100 requests/s or more: none broke." in found.stdout
        loops = bench(endpoint.url, *SMALL, "--sweep-concurrency", "1,2")
    assert "1 open" in loops.stdout
    compared = bench("compare", str(tmp_path / "a.json"), str(tmp_path / "b.json"))
    assert compared.returncode == 0
    assert compared.stdout.count("Median E2EL (ms)") == 2


def test_too_many_failures_are_exit_code_1() -> None:
    """lt-02: a measurement full of failures must not look like a good one to a script."""

    def script(path: str, body: dict[str, Any]) -> Iterator[Piece]:
        refused = body["max_tokens"] == 4 and len(endpoint.server.bodies) % 2
        return iter([plain(503, {"error": {"message": "full"}})]) if refused else streamed()(path, body)

    with FakeEndpoint(script) as endpoint:
        found = bench(endpoint.url, *SMALL, "--warmup", "0")
        allowed = bench(endpoint.url, *SMALL, "--warmup", "0", "--max-error-rate", "0.9")
    assert found.returncode == 1
    assert "of the requests failed, at most 1.0% allowed" in found.stderr
    assert "HTTP 503: full" in found.stdout
    assert allowed.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (("http://127.0.0.1:9",), 1, "nobody listens there"),
        (("ftp://x",), 2, "is no endpoint"),
        (("h:1", "--rate", "1", "--concurrency", "2"), 2, "rate and concurrency exclude each other"),
        (("h:1", "--rate", "-1"), 2, "rate is -1.0; it must be above 0"),
        (("h:1", "--dataset", "azure"), 2, "azure needs a dataset_path"),
        (("h:1", "--goodput", "speed:3"), 2, "goals are ttft:MS, tpot:MS and e2el:MS"),
        (("h:1", "--extra-body", "[1]"), 2, "it must be a JSON object"),
        (("h:1", "--sweep", "fast"), 2, "--sweep is 'fast'"),
        (("h:1", "--json", "/no/such/folder/r.json"), 2, "there is no folder /no/such/folder"),
        (("h:1", "--replay"), 2, "replay needs recorded times"),
        (("compare", "a.json"), 2, "compare takes two reports"),
        (("compare", "/no/a.json", "/no/b.json"), 1, "/no/a.json can't be read"),
        (("h:1", "--api-key", "env:NO_SUCH_KEY"), 2, "NO_SUCH_KEY"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence(arguments: tuple[str, ...], status: int, says: str) -> None:
    found = bench(*arguments)
    assert found.returncode == status
    assert says in found.stderr
    assert found.stderr.count("\n") == 1


def test_a_malformed_file_is_found_before_anybody_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text('{"prompt": "a"}\n{"promt": "b"}\n')
    found = bench("http://127.0.0.1:9", "--dataset", "jsonl", "--dataset-path", str(path))
    assert found.returncode == 1
    assert f"{path}:2: the line has neither prompt nor messages. Expected" in found.stderr


def test_a_wrong_model_is_said() -> None:
    with FakeEndpoint(streamed()) as endpoint:
        found = bench(endpoint.url, "--model", "other")
    assert found.returncode == 1
    assert "has no model 'other'; it has fake." in found.stderr


def interrupted(script: Any, out: Path, wanted: int, *flags: str) -> tuple[int, str, str]:
    """Ctrl-C once the endpoint has had `wanted` requests."""
    with FakeEndpoint(script) as endpoint:
        command = [sys.executable, "-m", "tandem.cli.main", "bench", endpoint.url, *flags, "--json", str(out)]
        process = subprocess.Popen(command, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while len(endpoint.server.bodies) < wanted and process.poll() is None:
            pass
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=30)
    return process.returncode, stdout, stderr


def test_ctrl_c_gives_a_partial_report_marked_so(tmp_path: Path) -> None:
    """The answers are held back when enough have come, so that some are open when the key is pressed."""
    out = tmp_path / "r.json"

    def script(path: str, body: dict[str, Any]) -> Iterator[Piece]:
        count[0] += 1
        return streamed(first_s=60.0 if count[0] > 15 else 0.0)(path, body)

    count = [0]
    flags = ("--num-requests", "500", "--input-len", "16", "--output-len", "4", "--concurrency", "2")
    status, stdout, stderr = interrupted(script, out, 17, *flags)
    assert status == 130
    assert "PARTIAL" in stdout
    assert "interrupted; the report is partial" in stderr
    assert "Traceback" not in stderr
    document = json.loads(out.read_text())
    assert document["partial"]
    summary = document["runs"][0]["summary"]
    assert summary["incomplete"] == 2
    assert summary["ok"] >= 5


def test_ctrl_c_before_anything_is_measured_says_that(tmp_path: Path) -> None:
    status, stdout, stderr = interrupted(lambda path, body: iter([60.0]), tmp_path / "r.json", 1)
    assert (status, stdout) == (130, "")
    assert stderr == "tandem: interrupted before anything was measured.\n"


def test_a_real_engine_is_measured(smollm2: Path) -> None:
    with Served(str(smollm2), "--max-model-len", "512") as server:
        found = bench(server.url, "--num-requests", "4", "--concurrency", "2", "--input-len", "64", "--output-len", "8")
    assert found.returncode == 0, found.stderr
    assert "Successful requests:                       4" in found.stdout
    assert "Total generated tokens:                    32" in found.stdout
    assert "Output tokens counted by:                  usage" in found.stdout
    # The endpoint's own tokenizer was asked how long a word is.
    total = next(line.split()[-1] for line in found.stdout.splitlines() if line.startswith("Total input tokens:"))
    assert int(total) == pytest.approx(4 * 64, rel=0.05)
