"""Turns "auto" into what this machine has, once, and makes the runner that fits it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from tandem.config.engine import EngineConfig
from tandem.core.errors import ConfigError
from tandem.core.types import DType, KVDType
from tandem.engine.kernels import triton
from tandem.engine.kernels.cpu.decoder import CpuDecoder
from tandem.engine.kernels.cpu.native import Kernels, load_kernels
from tandem.engine.loading.base import Checkpoint
from tandem.engine.loading.engine_file import EngineFile
from tandem.engine.memory import MemoryPlan
from tandem.engine.models.decoder import Decoder
from tandem.engine.runner.base import ModelRunner
from tandem.engine.runner.batch import BlockTableRows
from tandem.engine.runner.compiled_making import fitted, open_decoder
from tandem.engine.runner.eager import EagerRunner
from tandem.engine.runner.native import NativeRunner


@dataclass(frozen=True, slots=True)
class Machine:
    """What an engine runs on and in which types: nothing is "auto" any more."""

    device: Literal["cpu", "cuda"]
    threads: int
    dtype: DType
    kv_dtype: KVDType


def resolve_machine(config: EngineConfig, checkpoint: Checkpoint) -> Machine:
    """Raises `ConfigError` for a device that isn't there, or for what an engine file wasn't built for."""
    if isinstance(checkpoint, EngineFile):
        config = fitted(config, checkpoint)
        if config.device == "cuda":
            from tandem.engine.runner.compiled_cuda_making import check_gpu  # only here: it takes Triton

            check_gpu(checkpoint)
    threads = config.threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    device = _resolve_device(config)
    dtype = config.dtype if config.dtype != "auto" else _best_dtype(device)
    return Machine(device, threads, dtype, dtype if config.kv_dtype == "auto" else config.kv_dtype)


def free_device_bytes(machine: Machine) -> int | None:
    """Memory free on a GPU; None for the CPU, whose memory `plan_memory` asks the system for."""
    return torch.cuda.mem_get_info()[0] if machine.device == "cuda" else None


def make_runner(config: EngineConfig, checkpoint: Checkpoint, memory: MemoryPlan, machine: Machine) -> ModelRunner:
    """Load the weights and allocate the KV. A GPU if there is one, else native kernels, else the torch reference."""
    if machine.device == "cuda":
        if isinstance(checkpoint, EngineFile):
            from tandem.engine.runner.compiled_cuda_making import open_on_gpu  # only here: it takes Triton

            return open_on_gpu(checkpoint, config, memory)
        return _cuda_runner(config, checkpoint, memory, machine)
    tables = BlockTableRows(len(memory.groups), config.max_num_seqs, -(-memory.max_model_len // memory.block_size))
    if isinstance(checkpoint, EngineFile):
        decoder = open_decoder(checkpoint, config, memory, machine.kv_dtype, machine.threads)
        return NativeRunner(
            decoder, tables, f"compiled ({checkpoint.manifest.quantization.precision}, {decoder.variant})"
        )
    kernels, reason = _native_kernels(config, machine)
    if kernels is not None:
        native = _native_decoder(config, checkpoint, memory, machine, kernels)
        return NativeRunner(native, tables, f"paged (native, {native.variant})")
    if config.kernels == "native":
        raise ConfigError(f"kernels is 'native', but there are none: {reason}. Use --kernels auto.")
    if machine.kv_dtype == "int8":
        raise ConfigError(f"kv_dtype is int8, which the torch reference doesn't have, and it would serve: {reason}.")
    return _reference_runner(checkpoint, memory, machine, tables, reason)


def _native_kernels(config: EngineConfig, machine: Machine) -> tuple[Kernels | None, str]:
    if config.kernels == "reference":
        return None, "as asked"
    if "float16" in (machine.dtype, machine.kv_dtype):
        return None, "the native kernels have no float16"
    return load_kernels()


def _native_decoder(
    config: EngineConfig, checkpoint: Checkpoint, memory: MemoryPlan, machine: Machine, kernels: Kernels
) -> CpuDecoder:
    assert machine.dtype != "float16"
    assert machine.kv_dtype != "float16"
    return CpuDecoder(
        checkpoint.spec,
        checkpoint.read,
        kernels=kernels,
        weight_dtype=machine.dtype,
        kv_dtype=machine.kv_dtype,
        threads=machine.threads,
        block_size=memory.block_size,
        num_blocks=memory.num_blocks,
        max_tokens=config.max_num_batched_tokens,
        max_context=memory.max_model_len,
        groups=memory.groups,
    )


def _reference_runner(
    checkpoint: Checkpoint, memory: MemoryPlan, machine: Machine, tables: BlockTableRows, reason: str
) -> EagerRunner:
    decoder = Decoder(checkpoint.spec, memory.groups, checkpoint, getattr(torch, machine.dtype))
    # torch.empty touches no page: blocks cost memory when they are first written.
    dtype = getattr(torch, machine.kv_dtype)
    caches = [torch.empty(_cache_shape(checkpoint, memory), dtype=dtype) for _ in memory.groups[0].layers]
    return EagerRunner(decoder, caches, tables, reason)


def _cuda_runner(config: EngineConfig, checkpoint: Checkpoint, memory: MemoryPlan, machine: Machine) -> ModelRunner:
    # Only here: the modules import triton, which machines without a GPU don't need.
    from tandem.engine.kernels.triton.decoder import TritonDecoder
    from tandem.engine.kernels.triton.language import make_kv
    from tandem.engine.runner.cuda import CudaRunner

    device, kv_dtype = torch.device("cuda"), getattr(torch, machine.kv_dtype)
    decoder = TritonDecoder(checkpoint.spec, memory.groups, checkpoint, getattr(torch, machine.dtype), device)
    shape = _cache_shape(checkpoint, memory)
    return CudaRunner(
        decoder,
        [make_kv(shape, kv_dtype, device) for _ in memory.groups[0].layers],
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=memory.max_model_len,
    )


def _cache_shape(checkpoint: Checkpoint, memory: MemoryPlan) -> tuple[int, int, int, int, int]:
    """Of one layer: keys and values, blocks, KV heads, tokens, head size."""
    spec = checkpoint.spec
    return (2, memory.num_blocks, spec.num_kv_heads, memory.block_size, spec.head_dim)


def _resolve_device(config: EngineConfig) -> Literal["cpu", "cuda"]:
    if config.device == "cpu":
        return "cpu"
    # Asked first of torch: in the kernels' interpreter there would be no reason, and no GPU either.
    reason = triton.unavailable_reason() if torch.cuda.is_available() else "torch sees no GPU"
    if reason is None:
        return "cuda"
    if config.device == "cuda":
        raise ConfigError(f"device is 'cuda', but {reason}. Use --device cpu, or auto.")
    return "cpu"


def _best_dtype(device: str) -> DType:
    """bfloat16 where it is multiplied natively; elsewhere it would be slower than float32, which is also exact."""
    return "bfloat16" if device == "cuda" or _has_bf16_products() else "float32"


def _has_bf16_products() -> bool:
    try:
        flags = set(Path("/proc/cpuinfo").read_text().split("flags", 1)[1].split("\n", 1)[0].split())
    except (OSError, IndexError):
        return False
    return bool(flags & {"avx512_bf16", "amx_bf16"})
