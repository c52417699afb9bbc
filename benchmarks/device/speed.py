"""Steps of a runner beside their floors: decode by batch size, prefill by length."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.device.common import Floors, Sizes, gpu_ms, make_plan, make_request, wall_ms
from benchmarks.device.models import Room, compiled_runner, paged_runner

from tandem.engine.models.spec import ModelSpec
from tandem.engine.runner.compiled_cuda import CompiledCudaRunner
from tandem.engine.runner.cuda import CudaRunner

Runner = CudaRunner | CompiledCudaRunner
BITS = {None: 16.0, "fp8": 8.0, "int8": 8.5, "int4": 5.0}
"""A weight's, with its share of scales: groups of 64, with offsets for int4."""


def room_for(sizes: Sizes) -> Room:
    blocks_each = sizes.context // sizes.block_size + 1
    most = max(sizes.prompts)
    num_blocks = max(sizes.batches[-1] * blocks_each, most // sizes.block_size)
    return Room(num_blocks, sizes.batches[-1], most, max(most, sizes.context + 1), sizes.block_size)


def paged(device: torch.device, sizes: Sizes, floors: Floors) -> dict[str, Any]:
    spec = sizes.model(sizes.layers)
    begin = time.perf_counter()
    runner = paged_runner(spec, device, torch.bfloat16, room_for(sizes))
    for kv in runner._caches:
        kv.data.normal_()  # as power and speed depend on what is multiplied
    return {"layers": sizes.layers, "ready_s": time.perf_counter() - begin} | _rows(
        runner, spec, sizes, floors, None, sizes.prompts
    )


def compiled(
    kind: str | None, device: torch.device, sizes: Sizes, floors: Floors, *, is_compiled: bool = True
) -> dict[str, Any]:
    """The model whole in bf16, or few layers of it in fewer bits (embedding and head stay in bf16)."""
    layers = sizes.layers if kind is None else sizes.few_layers
    spec = sizes.model(layers)
    seconds: dict[str, float] = {}
    runner = compiled_runner(
        spec, device, torch.bfloat16, room_for(sizes), kind=kind, is_compiled=is_compiled, seconds=seconds
    )
    for cache in runner._caches:
        cache.normal_()
    rows = _rows(runner, spec, sizes, floors, kind, sizes.prompts if kind is None else sizes.few_prompts)
    recorded = runner.recordings
    graphs = {} if recorded is None else {"cuda_graphs": len(recorded), "cuda_graph_bytes": recorded.num_bytes}
    return {"layers": layers, "is_compiled": is_compiled} | seconds | graphs | rows


def _rows(
    runner: Runner, spec: ModelSpec, sizes: Sizes, floors: Floors, kind: str | None, prompts: tuple[int, ...]
) -> dict[str, Any]:
    made: dict[str, Any] = {
        "decode": [decode_row(runner, spec, size, sizes, floors, kind) for size in sizes.batches],
        "prefill": [prefill_row(runner, spec, count, sizes, floors) for count in prompts],
    }
    if torch.cuda.is_available():
        made["memory_gib"] = torch.cuda.max_memory_allocated() / (1 << 30)
    return made


def weight_bytes(spec: ModelSpec, kind: str | None) -> float:
    """Read by a step: all weights, but one row a token of the embedding."""
    head = spec.vocab_size * spec.hidden_size
    return head * 2 + (spec.num_parameters - 2 * head) * BITS[kind] / 8


def decode_row(
    runner: Runner, spec: ModelSpec, size: int, sizes: Sizes, floors: Floors, kind: str | None
) -> dict[str, float]:
    """`gpu_ms`: the graph alone. `step_ms`: the step as the engine sees it, with upload and tokens read back."""
    blocks_each = sizes.context // sizes.block_size + 1
    requests = [make_request(sizes.context, blocks_each, 1, first_block=i * blocks_each, seed=i) for i in range(size)]
    plan = make_plan([(request, sizes.context - 1, 1) for request in requests])
    step_ms = wall_ms(lambda: runner.execute(plan), sizes.repeats)
    alone = _replay(runner, size)
    alone_ms = step_ms if alone is None else gpu_ms(alone, sizes.repeats)
    for request in requests:
        runner.release(request)
    kv = size * sizes.context * spec.kv_bytes_per_token(2)
    floor_ms = (weight_bytes(spec, kind) + kv) / floors.bytes_s * 1e3
    return {
        "batch": size,
        "floor_ms": floor_ms,
        "gpu_ms": alone_ms,
        "of_roofline": floor_ms / alone_ms,
        "step_ms": step_ms,
        "tokens_s": size / step_ms * 1e3,
    }


def _replay(runner: Runner, size: int) -> Callable[[], None] | None:
    if isinstance(runner, CudaRunner):
        found = runner._graphs.get(size)
        return None if found is None else found[0].replay
    recording = None if runner.recordings is None else runner.recordings.get(size)
    return None if recording is None else recording.replay


def prefill_row(runner: Runner, spec: ModelSpec, count: int, sizes: Sizes, floors: Floors) -> dict[str, float]:
    request = make_request(count, -(-count // sizes.block_size), 1, first_block=0)
    plan = make_plan([(request, 0, count)])
    step_ms = wall_ms(lambda: runner.execute(plan), max(1, sizes.repeats // 2))
    runner.release(request)
    matrices = spec.num_parameters - 2 * spec.vocab_size * spec.hidden_size
    attention = 4 * spec.num_layers * spec.num_heads * spec.head_dim * count * count / 2
    floor_ms = (2 * matrices * count + attention) / floors.operations_s * 1e3
    return {
        "tokens": count,
        "floor_ms": floor_ms,
        "step_ms": step_ms,
        "of_roofline": floor_ms / step_ms,
        "tokens_s": count / step_ms * 1e3,
    }
