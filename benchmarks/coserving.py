"""Batch work in what interactive traffic leaves: goal attainment and throughput, alone and together, on one engine.

    python -m benchmarks.coserving --trace azure_llm_2023_conv.csv [--model MODEL] [--knee R] [--seconds S]

Interactive traffic has the lengths of the Azure conversation trace (CC-BY 4.0, Azure Public Dataset; Splitwise, ISCA
2024) and Poisson arrivals at 40 % of the engine's knee. The backlog is a batch through /v1/batches, of requests with
the same lengths. Both go through `tandem serve`, gateway and all; tokens are counted by its ledger.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import uuid
from pathlib import Path
from typing import Any

GOALS = ("ttft:1000", "tpot:50")
SHARE = 0.4
"""Of the knee, that interactive traffic takes."""
MAX_INPUT = 4000
"""The trace's longest prompts don't fit the model's context beside others."""
BACKLOG = 400
STARTING_S = 300.0


class Server:
    """`tandem serve` with an empty state folder."""

    def __init__(self, arguments: list[str], folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tandem.cli.main", "serve", *arguments, "--port", "0"],
            stderr=subprocess.PIPE, text=True, env={**os.environ, "XDG_STATE_HOME": str(folder)},
        )  # fmt: skip
        self.url = ""
        self._is_ready = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()
        if not self._is_ready.wait(STARTING_S):
            raise SystemExit("the server isn't ready")

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if found := re.search(r"listening on (http://\S+)", line):
                self.url = found[1]
            if line.strip() == "ready":
                self._is_ready.set()

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(60)

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            return json.load(answer)

    def post(self, path: str, body: bytes, content_type: str = "application/json") -> Any:
        request = urllib.request.Request(self.url + path, data=body, headers={"Content-Type": content_type})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def tokens_by_class(self) -> dict[str, int]:
        """Prompt and output tokens that the engine reported, of requests that have ended."""
        while self.get("/tandem/gateway")["num_ledger_rows_waiting"]:
            time.sleep(0.05)
        items = self.get("/tandem/usage?group_by=class")["data"]
        return {item["class"]: item["prompt_tokens"] + item["output_tokens"] for item in items}


def bench(server: Server, trace: Path, arguments: list[str]) -> dict[str, Any]:
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, "-m", "tandem.cli.main", "bench", server.url, "--dataset", "azure"]
        command += ["--dataset-path", str(trace), "--max-input-len", str(MAX_INPUT), "--json", file.name]
        subprocess.run([*command, "--goodput", *GOALS, *arguments], check=True, stdout=subprocess.DEVNULL)
        document: dict[str, Any] = json.loads(Path(file.name).read_text())
        return document


def find_knee(server: Server, trace: Path) -> float:
    """Requests a second at which the goals still hold for 90 % of them."""
    document = bench(server, trace, ["--sweep", "auto", "--duration", "30"])
    return float(document["knee"]["rate"])


def start_batch(server: Server, model: str, trace: Path) -> str:
    rng = random.Random(7)
    with trace.open() as file:
        rows = [(int(r["ContextTokens"]), int(r["GeneratedTokens"])) for r in csv.DictReader(file)]
    chosen = [(i, o) for i, o in rng.sample(rows, BACKLOG * 2) if i <= MAX_INPUT][:BACKLOG]
    lines = []
    for number, (num_input, num_output) in enumerate(chosen):
        prompt = [rng.randrange(100, 40_000) for _ in range(num_input)]
        body = {"model": model, "prompt": prompt, "max_tokens": num_output, "ignore_eos": True, "temperature": 0}
        line = {"custom_id": str(number), "method": "POST", "url": "/v1/completions", "body": body}
        lines.append(json.dumps(line))
    mark = uuid.uuid4().hex
    parts = [
        f'--{mark}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n',
        f'--{mark}\r\nContent-Disposition: form-data; name="file"; filename="backlog.jsonl"\r\n\r\n',
        "\n".join(lines),
        f"\r\n--{mark}--\r\n",
    ]
    uploaded = server.post("/v1/files", "".join(parts).encode(), f"multipart/form-data; boundary={mark}")
    asked = {"input_file_id": uploaded["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    batch: str = server.post("/v1/batches", json.dumps(asked).encode())["id"]
    return batch


def measure(server: Server, trace: Path, rate: float, seconds: float) -> dict[str, float]:
    before, begun_s = server.tokens_by_class(), time.monotonic()
    arguments = ["--rate", f"{rate:.4f}", "--duration", str(seconds), "--drain", "60", "--warmup", "0"]
    summary = bench(server, trace, arguments)["runs"][0]["summary"]
    taken_s, after = time.monotonic() - begun_s, server.tokens_by_class()
    found = {name: (after.get(name, 0) - before.get(name, 0)) / taken_s for name in ("interactive", "batch")}
    return {
        "requests": summary["total"],
        "attainment": summary["goodput_share"],
        "ttft_p99_ms": summary["ttft_ms"]["p99"],
        "tpot_p99_ms": summary["tpot_ms"]["p99"],
        "interactive_tok_s": found["interactive"],
        "batch_tok_s": found["batch"],
        "total_tok_s": sum(found.values()),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trace", type=Path, required=True, help="azure_llm_2023_conv.csv")
    parser.add_argument("--model", default="smollm2-135m", help="what tandem serve serves")
    parser.add_argument("--knee", type=float, help="requests a second, if it is known")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    flags = [args.model, "--served-model-name", "m", "--no-enable-prefix-caching", "--max-num-seqs", "64"]
    with tempfile.TemporaryDirectory() as folder:
        server = Server(flags, Path(folder))
        try:
            knee = args.knee or find_knee(server, args.trace)
            print(f"knee {knee:.2f} requests/s; interactive load {SHARE * knee:.2f}", flush=True)
            alone = measure(server, args.trace, SHARE * knee, args.seconds)
            batch = start_batch(server, "m", args.trace)
            time.sleep(10.0)
            together = measure(server, args.trace, SHARE * knee, args.seconds)
            server.post(f"/v1/batches/{batch}/cancel", b"{}")
        finally:
            server.close()
    names = list(alone)
    print(f"| | {' | '.join(names)} |\n|{'---|' * (len(names) + 1)}")
    for name, figures in (("alone", alone), ("with the backlog", together)):
        print(f"| {name} | {' | '.join(f'{figures[n]:.4g}' for n in names)} |")
    print(f"total throughput {together['total_tok_s'] / alone['total_tok_s']:.2f} times that of interactive work alone")
    if args.json:
        args.json.write_text(json.dumps({"knee": knee, "alone": alone, "together": together}, indent=1))


if __name__ == "__main__":
    main()
