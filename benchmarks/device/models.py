"""Random models on the device, on the paged runner and on the compiled one."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tests.engine.kernels.triton.cases import RandomCheckpoint
from torch import Tensor

from tandem.compiler.cuda import Fused, compile_steps, fuse_for_gpu
from tandem.compiler.cuda_graph import DECODE, MIXED, SINGLE, of_single_tokens
from tandem.compiler.progress import SilentStages
from tandem.engine.kernels.ops.kv_cache import cache_shape
from tandem.engine.kernels.ops.nibbles import PACKED
from tandem.engine.kernels.triton.decoder import TritonDecoder
from tandem.engine.kernels.triton.language import make_kv
from tandem.engine.kernels.triton.quantized_linear import Weights
from tandem.engine.kvcache.layer_groups import group_layers
from tandem.engine.models.spec import ModelSpec
from tandem.engine.quantization.matrix import QuantizedMatrix
from tandem.engine.runner.compiled_cuda import CompiledCudaRunner, Sizes, StepGraphs
from tandem.engine.runner.cuda import CudaRunner
from tandem.engine.runner.cuda_graphs import GpuCapture
from tandem.engine.runner.graphs import Graph, load_graph


def random_matrix(outputs: int, inputs: int, kind: str, group: int, device: torch.device) -> Weights:
    """group 0: one scale a row. The products keep the scale of what they are given."""
    groups = inputs // (group or inputs)
    scale = (torch.rand(outputs, groups, device=device) + 0.5) * inputs**-0.5
    if kind == "fp8":
        return Weights(torch.randn(outputs, inputs, device=device).to(torch.float8_e4m3fn), scale, None, kind)
    columns = inputs // 2 if kind == PACKED else inputs
    codes = torch.randint(0, 256 if kind != "int4" else 16, (outputs, columns), dtype=torch.uint8, device=device)
    scale = scale / (74 if kind == "int8" else 4.6)
    return Weights(codes, scale, None if kind == "int8" else scale * -7.5, kind)


class RandomModel:
    """What a quantised model gives: float weights of a test's checkpoint, or codes that nobody rounded.

    kind None: floats in `dtype`.
    """

    def __init__(self, spec: ModelSpec, device: torch.device, dtype: torch.dtype, kind: str | None) -> None:
        self.spec = spec
        self._kind, self._device, self._dtype = kind, device, dtype
        # Small models: the same numbers on every device.
        self._checkpoint = RandomCheckpoint(spec, device if spec.hidden_size > 1000 else None)

    def matrix(self, name: str) -> QuantizedMatrix | Tensor:
        if self._kind is None or "embed" in name or "lm_head" in name:
            return self._checkpoint.read(name, self._dtype).to(self._device)
        outputs, inputs = self._checkpoint.shape(name)
        weights = random_matrix(outputs, inputs, self._kind, 0 if self._kind == "fp8" else 64, self._device)
        return QuantizedMatrix(weights.codes, weights.scale, weights.offset, self._kind, "float")  # type: ignore[arg-type]

    def vector(self, name: str) -> Tensor:
        values = self._checkpoint.read(name, torch.float32).to(self._device)
        return values + 1 if self.spec.norm_plus_one and "norm" in name else values


@dataclass(frozen=True)
class Room:
    """What a runner holds."""

    num_blocks: int
    seats: int
    budget: int
    length: int
    block_size: int


SMALL = Room(num_blocks=64, seats=4, budget=64, length=128, block_size=16)


def paged_runner(spec: ModelSpec, device: torch.device, dtype: torch.dtype, room: Room) -> CudaRunner:
    groups = group_layers([spec.window(layer) for layer in range(spec.num_layers)])
    on_device = device if spec.hidden_size > 1000 else None
    decoder = TritonDecoder(spec, groups, RandomCheckpoint(spec, on_device), dtype, device)
    shape = (2, room.num_blocks, spec.num_kv_heads, room.block_size, spec.head_dim)
    return CudaRunner(
        decoder,
        [make_kv(shape, dtype, device) for _ in groups[0].layers],
        max_num_seqs=room.seats,
        max_num_batched_tokens=room.budget,
        max_model_len=room.length,
    )


def compiled_runner(
    spec: ModelSpec,
    device: torch.device,
    dtype: torch.dtype,
    room: Room,
    *,
    kind: str | None,
    is_compiled: bool,
    seconds: dict[str, float],
) -> CompiledCudaRunner:
    """With graphs by AOTInductor, or as they were fused; `seconds` is told what took how long."""
    begin = time.perf_counter()
    stages = SilentStages()
    fused = fuse_for_gpu(RandomModel(spec, device, dtype, kind), dtype, dtype, stages, device)  # type: ignore[arg-type]
    seconds["fuse_s"] = time.perf_counter() - begin
    begin = time.perf_counter()
    graphs = _compiled(fused, room.budget, device) if is_compiled else _uncompiled(fused)
    seconds["compile_s"] = time.perf_counter() - begin
    begin = time.perf_counter()
    shape = cache_shape(room.num_blocks, spec.num_kv_heads, room.block_size, spec.head_dim, dtype)
    sizes = Sizes(room.seats, room.budget, room.length, room.block_size, len(fused.groups))
    runner = CompiledCudaRunner(
        graphs,
        [torch.zeros(shape, dtype=dtype, device=device) for _ in range(fused.caches.count)],
        sizes,
        name="compiled",
        capture=GpuCapture() if device.type == "cuda" else None,
    )
    seconds["open_s"] = time.perf_counter() - begin
    return runner


def _compiled(fused: Fused, budget: int, device: torch.device) -> StepGraphs:
    constants = dict(fused.graph.named_buffers())
    folder = Path(tempfile.mkdtemp(prefix="tandem-device-"))
    package = folder / "graphs.pt2"
    compile_steps(fused, budget, device, package)
    single, decode, mixed = (load_graph(package, n, constants, recordable=True) for n in (SINGLE, DECODE, MIXED))
    package.unlink()
    folder.rmdir()
    return StepGraphs(single, decode, mixed, constants)


def _uncompiled(fused: Fused) -> StepGraphs:
    groups = len(fused.groups)
    single = _flat(of_single_tokens(fused.graph), groups)
    return StepGraphs(single, single, _flat(fused.graph, groups), {})


def _flat(module: Any, groups: int) -> Graph:
    def run(arguments: list[Tensor]) -> list[Tensor]:
        *first, rest = [*arguments[:4], arguments[4:]]
        tables, slots, (rows, *caches) = rest[:groups], rest[groups : 2 * groups], rest[2 * groups :]
        return [module(*first, tables, slots, rows, caches)]

    return run


def paged_small(spec: ModelSpec, device: torch.device) -> CudaRunner:
    return paged_runner(spec, device, torch.float32, SMALL)


def compiled_small(spec: ModelSpec, device: torch.device) -> CompiledCudaRunner:
    """Uncompiled: its operators, its padding, and on a GPU its CUDA graphs."""
    return compiled_runner(spec, device, torch.float32, SMALL, kind=None, is_compiled=False, seconds={})
