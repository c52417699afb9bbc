"""Everything to ask of a GPU, in one run of some minutes: are the kernels right, and how near the roofline are they?

    python benchmarks/device.py [--output device.json] [--layers 32]     on a GPU; 8 minutes at most on an H200
    python benchmarks/device.py --smoke                                  correctness only, in Triton's interpreter

1. Every kernel, and the runner with its CUDA graphs, against the torch reference.
2. Decode steps of a random model of Llama-3.1-8B's shape in bf16, contexts of 1,024, batches of 1 to 256, beside their
   floor: weights and KV over the bandwidth that a copy reaches here.
3. Prefill steps beside theirs: multiplications over the rate that a large product reaches here.
4. What block tables cost: uploaded whole, and as the runner does it.

Needs torch, triton, msgspec and the repository (it uses the tests' cases).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

    from tandem.engine.models.spec import ModelSpec
    from tandem.engine.runner.cuda import CudaRunner
    from tandem.engine.scheduler import StepPlan

ROOT = Path(__file__).resolve().parents[1]
CONTEXT = 1024
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
PROMPTS = (128, 512, 2048, 8192)
BLOCK_SIZE = 16


class Check(NamedTuple):
    name: str
    error: float
    allowed: float
    seconds: float

    @property
    def passes(self) -> bool:
        return self.error <= self.allowed


# Correctness ---------------------------------------------------------------------------------------------------------


def checks(device: torch.device) -> Iterator[tuple[str, float, Callable[[], float]]]:
    """Name, allowed error, and what measures it. Sizes as models have them; a few sequences, so that it stays short."""
    import torch
    from tests.engine.kernels.triton.cases import TINY, Case, RopeCase, attention_error

    bf16, int8, f32 = torch.bfloat16, torch.int8, torch.float32
    mixed: dict[str, Any] = {"queries": (1, 1, 7, 40), "contexts": (65, 16, 7, 100), "with_rows": True}
    llama: dict[str, Any] = {"heads": 32, "kv_heads": 8, "dim": 128} if device.type == "cuda" else {}
    attention = {
        "llama shape": (0.03, Case(**mixed, **llama, dtype=bf16)),
        "int8 KV": (0.03, Case(**mixed, **llama, dtype=bf16, kv_dtype=int8)),
        "float32": (1e-4, Case(**mixed, heads=4, kv_heads=2, dim=64)),
        "float32 queries, bf16 KV": (1e-3, Case(**mixed, dim=64, kv_dtype=bf16)),
        "gemma shape": (0.03, Case(**mixed, heads=4, kv_heads=1, dim=256, dtype=bf16, window=33, soft_cap=50.0)),
        "odd heads, block size 1": (1e-4, Case(**mixed, heads=7, kv_heads=1, dim=80, block_size=1)),
        "block size 64": (1e-4, Case(**mixed, block_size=64)),
        "splits": (0.03, Case(queries=(1, 1), contexts=(300, 17), splits=4, **llama, dtype=bf16)),
        "splits and window": (1e-4, Case(queries=(1, 1), contexts=(300, 17), splits=3, window=90)),
    }
    for name, (allowed, case) in attention.items():
        yield f"attention: {name}", allowed, partial(attention_error, case, device)
    ropes = {
        "plain": (0.07, RopeCase(**llama, dtype=bf16)),
        "bias, norms": (1e-5, RopeCase(bias=True, norms=True, dim=80)),
        "int8 KV": (0.51, RopeCase(dim=64, kv_dtype=int8)),
    }
    for name, (allowed, rope) in ropes.items():
        yield f"rope and KV write: {name}", allowed, partial(_rope_error, rope, device)
    yield "norms, float32", 1e-5, lambda: _norm_error(f32, device)
    yield "norms, bfloat16", 0.13, lambda: _norm_error(bf16, device)
    yield "gated activations", 1e-5, lambda: _gated_error(device)
    yield "draws that differ, of 192", 0, lambda: _draws_that_differ(device)
    for name, spec in TINY.items():
        yield f"runner: tokens that differ, {name}", 0, partial(_tokens_that_differ, spec, device)


def _rope_error(case: Any, device: torch.device) -> float:
    from tests.engine.kernels.triton.cases import rope_errors

    return max(rope_errors(case, device))


def _norm_error(dtype: torch.dtype, device: torch.device) -> float:
    import torch

    from tandem.engine.kernels import reference as ops
    from tandem.engine.kernels.triton.norms import add_rms_norm

    x, residual, weight, inner = (torch.randn(5, 4096).to(dtype).to(device) for _ in range(4))
    total = residual + ops.rms_norm(x, inner[0], 1e-5)
    got = add_rms_norm(x, residual, weight[0], 1e-5, inner_weight=inner[0])
    expected = ops.rms_norm(total, weight[0], 1e-5)
    return float(max((got - expected).abs().max(), (residual - total).abs().max()))


def _gated_error(device: torch.device) -> float:
    import torch

    from tandem.engine.kernels import reference as ops
    from tandem.engine.kernels.triton.activation import gated

    both = torch.randn(3, 2 * 3000).to(device) * 3
    gate, up = both.chunk(2, dim=-1)
    pairs = ((gated(both, "silu"), ops.silu_mul(gate, up)), (gated(both, "gelu_tanh"), ops.gelu_tanh_mul(gate, up)))
    return float(max((got - expected).abs().max() for got, expected in pairs))


def _draws_that_differ(device: torch.device) -> int:
    """Of 64 rows each: argmax, all, likely set; over a vocabulary of some pieces."""
    import torch

    from tandem.core.sampling_params import SamplingParams
    from tandem.engine.kernels.triton.sampling import DrawParams, argmax, draw, draw_likely
    from tandem.engine.sampling.draw import draw as draw_on_host

    logits = torch.randn(64, 9000) * 3
    uniforms = torch.rand(64, dtype=torch.float64)
    column = torch.ones(64)
    there = [t.to(device) for t in (column * 0.8, column.int() * 50, column.double() * 0.9, column * 0.01, uniforms)]
    params = DrawParams(*there)
    narrow = SamplingParams(temperature=0.8, top_k=50, top_p=0.9, min_p=0.01)
    on_device = logits.to(device)
    pairs = [
        (argmax(on_device).token.tolist(), logits.argmax(1).tolist()),
        (draw(on_device, params).tolist(), _each(logits, SamplingParams(temperature=0.8), uniforms, draw_on_host)),
        (draw_likely(on_device, params).tolist(), _each(logits, narrow, uniforms, draw_on_host)),
    ]
    return sum(g != e for got, expected in pairs for g, e in zip(got, expected, strict=True))


def _each(logits: torch.Tensor, wanted: Any, uniforms: torch.Tensor, choose: Any) -> list[int]:
    return [choose(row, wanted, u) for row, u in zip(logits.numpy(), uniforms.tolist(), strict=True)]


def _tokens_that_differ(spec: ModelSpec, device: torch.device) -> int:
    """Greedy tokens of three prompts, against the plain decoder run whole on each known text."""
    import torch

    from tandem.engine.kvcache.layer_groups import group_layers

    runner = make_runner(spec, device, dtype=torch.float32, num_blocks=64, seats=4, budget=64, length=128)
    groups = group_layers([spec.window(layer) for layer in range(spec.num_layers)])
    requests = [make_request(n, 6, len(groups), first_block=20 * i, seed=i) for i, n in enumerate((17, 1, 30))]
    wrong = 0
    work = [(request, 0, len(request.token_ids)) for request in requests]
    for _ in range(5):
        chosen = runner.execute(make_plan(work))
        for request, token in zip(requests, chosen.token_ids, strict=True):
            wrong += token != _reference_token(spec, request.token_ids)
            request.token_ids.append(token)
        work = [(request, len(request.token_ids) - 1, 1) for request in requests]
    return wrong


def _reference_token(spec: ModelSpec, tokens: list[int]) -> int:
    import torch
    from tests.engine.kernels.triton.cases import RandomCheckpoint

    from tandem.engine.kernels.step import GroupTensors, StepTensors
    from tandem.engine.kvcache.layer_groups import LayerGroup
    from tandem.engine.models.decoder import Decoder

    count = len(tokens)
    one_group = (LayerGroup(tuple(range(spec.num_layers)), None),)
    decoder = Decoder(spec, one_group, RandomCheckpoint(spec), torch.float32)
    caches = [torch.zeros(2, 1, spec.num_kv_heads, 128, spec.head_dim) for _ in range(spec.num_layers)]
    group = GroupTensors(torch.zeros(1, 1, dtype=torch.int32), torch.arange(count))
    ints = torch.arange(count, dtype=torch.int32)
    ends = torch.tensor([0, count], dtype=torch.int32)
    step = StepTensors(
        torch.tensor(tokens, dtype=torch.int32), ints, ends, ends[1:], [group], torch.tensor([count - 1])
    )
    return int(decoder.logits(decoder.forward(step, caches)[-1:]).argmax())


# Requests and runners ------------------------------------------------------------------------------------------------


def make_request(num_tokens: int, num_blocks: int, num_groups: int, *, first_block: int, seed: int = 0) -> Any:
    """With blocks of its own from `first_block` on: `num_blocks` in every group."""
    import torch

    from tandem.core.request import Rank, Request
    from tandem.core.sampling_params import SamplingParams

    tokens = torch.randint(0, 200, (num_tokens,), generator=torch.Generator().manual_seed(seed)).tolist()
    request = Request("r", tokens, SamplingParams(temperature=0.0), Rank(0, 0.0, seed), max_tokens=10)
    begins = [first_block + group * num_blocks for group in range(num_groups)]
    request.block_tables = tuple(list(range(begin, begin + num_blocks)) for begin in begins)  # type: ignore[arg-type]
    return request


def make_plan(work: Sequence[tuple[Any, int, int]]) -> StepPlan:
    """(request, start, tokens) each."""
    from tandem.engine.scheduler import ScheduledRequest, StepPlan

    return StepPlan([ScheduledRequest(*item) for item in work], num_tokens=sum(count for _, _, count in work))


def make_runner(
    spec: ModelSpec,
    device: torch.device,
    *,
    dtype: torch.dtype,
    num_blocks: int,
    seats: int,
    budget: int,
    length: int,
) -> CudaRunner:
    from tests.engine.kernels.triton.cases import RandomCheckpoint

    from tandem.engine.kernels.triton.decoder import TritonDecoder
    from tandem.engine.kernels.triton.language import make_kv
    from tandem.engine.kvcache.layer_groups import group_layers
    from tandem.engine.runner.cuda import CudaRunner

    groups = group_layers([spec.window(layer) for layer in range(spec.num_layers)])
    on_device = device if spec.hidden_size > 1000 else None  # small models: the same numbers on every device
    decoder = TritonDecoder(spec, groups, RandomCheckpoint(spec, on_device), dtype, device)
    shape = (2, num_blocks, spec.num_kv_heads, BLOCK_SIZE, spec.head_dim)
    caches = [make_kv(shape, dtype, device) for _ in groups[0].layers]
    return CudaRunner(decoder, caches, max_num_seqs=seats, max_num_batched_tokens=budget, max_model_len=length)


def llama_8b(layers: int) -> ModelSpec:
    from tandem.engine.models.spec import ModelSpec, RopeScaling

    return ModelSpec(
        family="llama",
        num_layers=layers,
        hidden_size=4096,
        intermediate_size=14336,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        vocab_size=128256,
        max_position=131072,
        rms_norm_eps=1e-5,
        rope_theta=500000.0,
        rope_scaling=RopeScaling(kind="llama3", factor=8.0),
    )


# Speed ---------------------------------------------------------------------------------------------------------------


def gpu_ms(run: Callable[[], object], repeats: int = 10) -> float:
    """Median time between two events around `run`, after two turns that don't count."""
    import torch

    times = []
    for turn in range(repeats + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        if turn >= 2:
            times.append(float(begin.elapsed_time(end)))
    return statistics.median(times)


def wall_ms(run: Callable[[], object], repeats: int = 10) -> float:
    import torch

    times = []
    for turn in range(repeats + 2):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        run()
        torch.cuda.synchronize()
        if turn >= 2:
            times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times)


def floors(device: torch.device) -> tuple[float, float]:
    """Bytes per second of a large copy, read and written; floating-point operations per second of a large product."""
    import torch

    source = torch.empty(4 << 30, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    bandwidth = 2 * source.numel() / (gpu_ms(partial(target.copy_, source)) / 1e3)
    del source, target
    a, b = (torch.randn(8192, 8192, device=device, dtype=torch.bfloat16) for _ in range(2))
    return bandwidth, 2 * 8192**3 / (gpu_ms(lambda: a @ b) / 1e3)


def speed(device: torch.device, layers: int) -> dict[str, Any]:
    import torch

    bandwidth, rate = floors(device)
    spec = llama_8b(layers)
    blocks_each = CONTEXT // BLOCK_SIZE + 1
    seats = BATCHES[-1]
    num_blocks = max(seats * blocks_each, PROMPTS[-1] // BLOCK_SIZE)
    begin = time.perf_counter()
    runner = make_runner(
        spec,
        device,
        dtype=torch.bfloat16,
        num_blocks=num_blocks,
        seats=seats,
        budget=PROMPTS[-1],
        length=PROMPTS[-1],
    )
    for kv in runner._caches:
        kv.data.normal_()  # as power and speed depend on what is multiplied
    return {
        "device": torch.cuda.get_device_name(device),
        "bandwidth_tb_s": bandwidth / 1e12,
        "product_tflop_s": rate / 1e12,
        "layers": layers,
        "ready_s": time.perf_counter() - begin,
        "decode": [decode_row(runner, spec, size, blocks_each, bandwidth) for size in BATCHES],
        "prefill": [prefill_row(runner, spec, count, rate) for count in PROMPTS],
        "memory_gib": torch.cuda.max_memory_allocated(device) / (1 << 30),
    }


def decode_row(runner: CudaRunner, spec: ModelSpec, size: int, blocks_each: int, bandwidth: float) -> dict[str, float]:
    """`gpu_ms`: the graph alone. `step_ms`: the step as the engine sees it, with upload and tokens read back."""
    requests = [make_request(CONTEXT, blocks_each, 1, first_block=i * blocks_each, seed=i) for i in range(size)]
    plan = make_plan([(request, CONTEXT - 1, 1) for request in requests])
    step_ms = wall_ms(lambda: runner.execute(plan))
    graph, _ = runner._graphs[size]
    alone_ms = gpu_ms(graph.replay)
    for request in requests:
        runner.release(request)
    weights = (spec.num_parameters - spec.vocab_size * spec.hidden_size) * 2  # one row a token of the embedding
    floor_ms = (weights + size * CONTEXT * spec.kv_bytes_per_token(2)) / bandwidth * 1e3
    return {
        "batch": size,
        "floor_ms": floor_ms,
        "gpu_ms": alone_ms,
        "of_roofline": floor_ms / alone_ms,
        "step_ms": step_ms,
        "tokens_s": size / step_ms * 1e3,
    }


def prefill_row(runner: CudaRunner, spec: ModelSpec, count: int, rate: float) -> dict[str, float]:
    request = make_request(count, count // BLOCK_SIZE, 1, first_block=0)
    plan = make_plan([(request, 0, count)])
    step_ms = wall_ms(lambda: runner.execute(plan), repeats=5)
    runner.release(request)
    matrices = spec.num_parameters - 2 * spec.vocab_size * spec.hidden_size
    attention = 4 * spec.num_layers * spec.num_heads * spec.head_dim * count * count / 2
    floor_ms = (2 * matrices * count + attention) / rate * 1e3
    return {
        "tokens": count,
        "floor_ms": floor_ms,
        "step_ms": step_ms,
        "of_roofline": floor_ms / step_ms,
        "tokens_s": count / step_ms * 1e3,
    }


def table_row(context: int, device: torch.device) -> dict[str, float]:
    """A step of 256 sequences: their tables whole from pinned memory, and the runner's upload, where none of them or
    all of them have a new block."""
    import torch

    from tandem.engine.runner.cuda_inputs import DeviceTables, StepInputs

    blocks = context // BLOCK_SIZE
    whole = torch.zeros(256, blocks, dtype=torch.int32, pin_memory=device.type == "cuda")
    there = torch.zeros(256, blocks, dtype=torch.int32, device=device)
    tables = DeviceTables(1, 256, blocks, device)
    inputs = StepInputs(tables, 1, 256, 256, BLOCK_SIZE)
    plan = make_plan([(make_request(1, blocks, 1, first_block=0), 0, 1) for _ in range(256)])

    def upload() -> None:
        inputs.upload(plan.scheduled, range(256), padded_to=256)

    def upload_new_blocks() -> None:
        for scheduled in plan.scheduled:
            tables._states[scheduled.request].lengths[0] -= 1
        upload()

    return {
        "context": context,
        "whole_ms": wall_ms(partial(there.copy_, whole, non_blocking=True)),
        "step_ms": wall_ms(upload),
        "with_256_new_blocks_ms": wall_ms(upload_new_blocks),
    }


# Output --------------------------------------------------------------------------------------------------------------


def run_checks(device: torch.device) -> list[Check]:
    import torch

    torch.manual_seed(0)
    done = []
    for name, allowed, measure in checks(device):
        begin = time.perf_counter()
        try:
            error = measure()
        except Exception as problem:
            # A kernel that doesn't compile must not hide what the others do.
            print(f"{name}: {type(problem).__name__}: {problem}", file=sys.stderr)
            error = float("inf")
        done.append(Check(name, error, allowed, time.perf_counter() - begin))
        mark = "ok  " if done[-1].passes else "FAIL"
        print(f"{mark} {name:42} error {error:9.2e}  allowed {allowed:7.0e}  {done[-1].seconds:5.1f} s", flush=True)
    return done


def print_table(title: str, rows: Sequence[dict[str, float]]) -> None:
    print(f"\n{title}\n" + "".join(f"{name:>28}" for name in rows[0]))
    for row in rows:
        print("".join(f"{value:28,.3f}" if isinstance(value, float) else f"{value:28,}" for value in row.values()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="correctness only, on the CPU in Triton's interpreter")
    parser.add_argument("--layers", type=int, default=32, help="of the model that is measured")
    parser.add_argument("--output", type=Path, help="where the figures go as JSON")
    arguments = parser.parse_args()
    if arguments.smoke:
        os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported, here and nowhere else
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]
    import torch

    if not arguments.smoke and not torch.cuda.is_available():
        print("torch sees no GPU here; --smoke checks the kernels without one", file=sys.stderr)
        return 1
    device = torch.device("cpu" if arguments.smoke else "cuda")
    done = run_checks(device)
    figures: dict[str, Any] = {"checks": [check._asdict() for check in done], "torch": torch.__version__}
    if not arguments.smoke:
        figures |= speed(device, arguments.layers)
        figures["tables"] = [table_row(context, device) for context in (1024, 8192, 131072)]
        print_table("decode, contexts of 1,024", figures["decode"])
        print_table("prefill", figures["prefill"])
        print_table("block tables of 256 sequences", figures["tables"])
    text = json.dumps(figures, indent=1)
    if arguments.output:
        arguments.output.write_text(text + "\n")
    print(text)
    return 0 if all(check.passes for check in done) else 1


if __name__ == "__main__":
    sys.exit(main())
