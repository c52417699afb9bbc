"""Which compiler for the compiled engine? One decoder layer of SmolLM2's shape, in each of the ways at hand.

    python -m benchmarks.compile_candidates [--openvino PYTHON]

Milliseconds a layer for M tokens: torch operation by operation; AOTInductor alone (frozen, C++ templates autotuned);
OpenVINO; and our one native operator over the whole stack, divided by its layers, with bf16 weights and with W8A8 and
4-bit ones. Attention is left out of the first three, and is over one position in the operator: what is compared are
products, norms, and what lies between them. The price of an operator's boundary in a compiled graph is measured alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, rms_norm, silu

from tandem.compiler.progress import SilentStages
from tandem.compiler.stack import make_stack
from tandem.engine.kernels.cpu.decoder import CpuDecoder
from tandem.engine.kernels.cpu.native import load_kernels
from tandem.engine.loading.opening import open_checkpoint
from tandem.engine.loading.sources import resolve
from tandem.engine.quantization.model import quantize
from tandem.engine.quantization.recipe import Precision, Recipe
from tandem.engine.runner.graphs import load_graph

HIDDEN, HEADS, KV_HEADS, HEAD, MLP = 576, 9, 3, 64, 1536
SIZES = (1, 16, 64, 512)
THREADS = 2


class Layer(nn.Module):
    """Everything but attention, whose output stands for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ParameterList([torch.ones(HIDDEN, dtype=torch.bfloat16) for _ in range(2)])
        shapes = [((HEADS + 2 * KV_HEADS) * HEAD, HIDDEN), (HIDDEN, HEADS * HEAD), (2 * MLP, HIDDEN), (HIDDEN, MLP)]
        self.weights = nn.ParameterList([torch.randn(shape).mul_(0.02).to(torch.bfloat16) for shape in shapes])

    def forward(self, x: Tensor) -> Tensor:
        qkv, out, gate_up, down = self.weights
        mixed = linear(rms_norm(x, (HIDDEN,), self.norms[0], 1e-5), qkv)[:, : HEADS * HEAD]
        x = x + linear(mixed, out)
        gate, up = linear(rms_norm(x, (HIDDEN,), self.norms[1], 1e-5), gate_up).chunk(2, -1)
        return x + linear(silu(gate) * up, down)


class Layers(nn.Module):
    """Several with weights of their own, so that they come from memory and not from a cache."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


COUNT = 10


def inputs(tokens: int) -> Tensor:
    return torch.randn(tokens, HIDDEN).to(torch.bfloat16)


def milliseconds(run: Callable[[], object], layers: int) -> float:
    run()
    taken = []
    for _ in range(20):
        begun_s = time.perf_counter()
        run()
        taken.append(time.perf_counter() - begun_s)
    return statistics.median(taken) * 1e3 / layers


@torch.inference_mode()
def eager(stack: Layers) -> list[float]:
    return [milliseconds(partial(stack, inputs(m)), COUNT) for m in SIZES]


@torch.no_grad()
def inductor(stack: Layers) -> list[float]:
    from torch._inductor import aoti_compile_and_package, aoti_load_package

    options = {"max_autotune": True, "max_autotune_gemm_backends": "CPP,ATEN", "freezing": True}
    found = []
    for m in SIZES:
        x = inputs(m)
        with tempfile.TemporaryDirectory() as folder:
            program = torch.export.export(stack, (x,))
            package = aoti_compile_and_package(
                program, package_path=f"{folder}/layers.pt2", inductor_configs=dict(options)
            )
            compiled = aoti_load_package(package)
        found.append(milliseconds(partial(compiled, x), COUNT))
    return found


def native(precision: Precision) -> list[float]:
    """The whole network but its head, whose rows are not asked for."""
    kernels, reason = load_kernels()
    assert kernels is not None, reason
    model = quantize(open_checkpoint(resolve("smollm2-135m")), Recipe(precision=precision))
    stack = make_stack(model, torch.bfloat16, kernels, SilentStages())
    blocks = max(SIZES)
    decoder = CpuDecoder.from_image(
        model.spec, stack.image, stack.entries, kernels=kernels, threads=THREADS, num_blocks=blocks,
        max_tokens=max(SIZES), max_context=64, kv_dtype="bfloat16",
    )  # fmt: skip
    found = []
    for m in SIZES:
        ids = torch.arange(m, dtype=torch.int32)
        zeros, none = torch.zeros_like(ids), torch.empty(0, dtype=torch.int32)
        starts = torch.arange(m + 1, dtype=torch.int32)
        table = [ids.view(-1, 1)]

        def step(ids=ids, zeros=zeros, starts=starts, table=table, none=none) -> None:  # type: ignore[no-untyped-def]
            decoder.step(ids, zeros, starts, zeros + 1, table, [ids * 16], none, argmax_out=none)

        found.append(milliseconds(step, model.spec.num_layers))
    decoder.close()
    return found


def boundary_us() -> float:
    """What calling one Python-registered operator from a compiled graph takes."""
    from tandem.compiler.aot import compile_package
    from tandem.compiler.lowering import GraphLimits, LoweredDecoder, export_single
    from tandem.engine.runner.stack_op import session

    class Nothing:
        def step(self, *arguments: object, **named: object) -> None: ...

    weights = torch.zeros(64, dtype=torch.uint8)
    ints = [torch.zeros(n, dtype=torch.int32) for n in (3, 1, 1, 2, 1)]
    arguments = [*ints, ints[1].view(1, 1), ints[1], ints[1], torch.zeros(1, 8)]
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "graph.pt2"
        program = export_single(LoweredDecoder(weights), GraphLimits(16, 64, 1, 8))
        compile_package({"single": program}, package)
        graph = load_graph(package, "single", {"weights": weights})
    with session(weights, Nothing()):
        return milliseconds(lambda: [graph(list(arguments)) for _ in range(100)], 100) * 1e3


def openvino(python: str) -> list[float]:
    program = Path(__file__).parent / "peers" / "openvino_layers.py"
    shape = json.dumps({"sizes": SIZES, "layers": COUNT, "threads": THREADS})
    done = subprocess.run([python, str(program), shape], capture_output=True, text=True, check=True)
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--openvino", help="Python of an environment that has openvino")
    args = parser.parse_args()
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    stack = Layers(COUNT)
    print(f"| ms a layer | {' | '.join(f'M = {m}' for m in SIZES)} |\n|{'---|' * (len(SIZES) + 1)}")
    rows: dict[str, Callable[[], list[float]]] = {
        "torch, bf16": lambda: eager(stack),
        "AOTInductor alone, bf16": lambda: inductor(stack),
        "one native operator, bf16": lambda: native("bf16"),
        "one native operator, W8A8": lambda: native("w8a8"),
        "one native operator, 4 bits as stored": lambda: native("as-is"),
    }
    if args.openvino:
        rows["OpenVINO, bf16"] = lambda: openvino(args.openvino)
    for name, run in rows.items():
        try:
            print(f"| {name} | {' | '.join(f'{ms:.3f}' for ms in run())} |", flush=True)
        except Exception as error:  # a candidate that isn't there must not hide the others
            print(f"| {name} | failed: {str(error).splitlines()[0]:.100} |", flush=True)
    print(f"\nboundary of one operator in a compiled graph: {boundary_us():.1f} µs", file=sys.stdout)


if __name__ == "__main__":
    main()
