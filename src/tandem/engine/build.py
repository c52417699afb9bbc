"""Puts an engine together: opens the model, divides the memory, loads the weights, and makes runner and core."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from tandem.config.engine import DTypeChoice, EngineConfig
from tandem.core.clock import Clock
from tandem.core.errors import ConfigError
from tandem.core.types import DType, KVDType
from tandem.engine.core import EngineCore
from tandem.engine.kernels.cpu.decoder import CpuDecoder
from tandem.engine.kernels.cpu.native import Kernels, load_kernels
from tandem.engine.kvcache.manager import KVCacheManager
from tandem.engine.loading.base import Checkpoint
from tandem.engine.memory import ELEMENT_BYTES, MemoryPlan, plan_memory
from tandem.engine.messages import Ready
from tandem.engine.models.decoder import Decoder
from tandem.engine.runner.base import ModelRunner
from tandem.engine.runner.batch import BlockTableRows
from tandem.engine.runner.eager import EagerRunner
from tandem.engine.runner.native import NativeRunner
from tandem.engine.scheduler import Scheduler
from tandem.engine.stats import StatsKeeper
from tandem.engine.watching import text_watcher


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    core: EngineCore
    ready: Ready


def build_engine(config: EngineConfig, checkpoint: Checkpoint, clock: Clock) -> BuiltEngine:
    """Load the model into memory and make it ready to step. Raises `ConfigError`, `ModelError`, `MemoryTooSmall`."""
    started_s = time.monotonic()
    threads = _set_threads(config)
    device = _resolve_device(config)
    dtype = _resolve_dtype(config.dtype)
    kv_dtype: KVDType = dtype if config.kv_dtype == "auto" else config.kv_dtype
    spec = checkpoint.spec
    # Planned before anything is loaded: what doesn't fit is refused at once, and the estimate is exact for these types.
    memory = plan_memory(spec, config, kv_dtype, spec.num_parameters * ELEMENT_BYTES[dtype])
    runner = _make_runner(config, checkpoint, memory, dtype, kv_dtype, threads)
    kv = KVCacheManager(
        memory.num_blocks,
        memory.block_size,
        memory.groups,
        enable_prefix_caching=config.enable_prefix_caching,
        hash_seed=config.hash_seed,
    )
    scheduler = Scheduler(
        kv,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=memory.max_model_len,
    )
    core = EngineCore(
        scheduler,
        runner,
        clock,
        eos_token_ids=frozenset(spec.eos_token_ids),
        watch_text=text_watcher(checkpoint.text),
        stats=StatsKeeper(scheduler, spec),
    )
    summary = [
        f"model     {config.public_name}: {spec.family}, {spec.num_parameters / 1e6:.0f} M parameters, {dtype}",
        f"runner    {runner.name}, {threads} threads on {device}",
        *memory.describe(),
        f"loaded in {time.monotonic() - started_s:.1f} s",
    ]
    return BuiltEngine(core, _ready(config, checkpoint, memory, runner, device, dtype, kv_dtype, summary))


def _make_runner(
    config: EngineConfig, checkpoint: Checkpoint, memory: MemoryPlan, dtype: DType, kv_dtype: KVDType, threads: int
) -> ModelRunner:
    tables = BlockTableRows(len(memory.groups), config.max_num_seqs, -(-memory.max_model_len // memory.block_size))
    kernels, reason = (None, "as asked") if config.kernels == "reference" else _native_kernels(dtype, kv_dtype)
    if kernels is not None:
        return NativeRunner(_native_decoder(config, checkpoint, memory, dtype, kv_dtype, threads, kernels), tables)
    if config.kernels == "native":
        raise ConfigError(f"kernels is 'native', but there are none: {reason}. Use --kernels auto.")
    if kv_dtype == "int8":
        raise ConfigError(f"kv_dtype is int8, which only the native kernels have, and there are none: {reason}.")
    return _reference_runner(checkpoint, memory, dtype, kv_dtype, tables, reason)


def _native_kernels(dtype: DType, kv_dtype: KVDType) -> tuple[Kernels | None, str]:
    if "float16" in (dtype, kv_dtype):
        return None, "they have no float16"
    return load_kernels()


def _native_decoder(
    config: EngineConfig,
    checkpoint: Checkpoint,
    memory: MemoryPlan,
    dtype: DType,
    kv_dtype: KVDType,
    threads: int,
    kernels: Kernels,
) -> CpuDecoder:
    assert dtype != "float16"
    assert kv_dtype != "float16"
    return CpuDecoder(
        checkpoint.spec,
        checkpoint.read,
        kernels=kernels,
        weight_dtype=dtype,
        kv_dtype=kv_dtype,
        threads=threads,
        block_size=memory.block_size,
        num_blocks=memory.num_blocks,
        max_tokens=config.max_num_batched_tokens,
        groups=memory.groups,
    )


def _reference_runner(
    checkpoint: Checkpoint, memory: MemoryPlan, dtype: DType, kv_dtype: KVDType, tables: BlockTableRows, reason: str
) -> EagerRunner:
    spec = checkpoint.spec
    decoder = Decoder(spec, memory.groups, checkpoint, getattr(torch, dtype))
    shape = (2, memory.num_blocks, spec.num_kv_heads, memory.block_size, spec.head_dim)
    # torch.empty touches no page: blocks cost memory when they are first written.
    caches = [torch.empty(shape, dtype=getattr(torch, kv_dtype)) for _ in memory.groups[0].layers]
    return EagerRunner(decoder, caches, tables, reason)


def _set_threads(config: EngineConfig) -> int:
    threads = config.threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    return threads


def _resolve_device(config: EngineConfig) -> str:
    if config.device == "cuda":
        raise ConfigError("device is 'cuda', but this version's engines run on the CPU only; use --device cpu.")
    return "cpu"


def _resolve_dtype(choice: DTypeChoice) -> DType:
    """bfloat16 where the processor multiplies it; elsewhere it would be slower than float32, which is also exact."""
    if choice != "auto":
        return choice
    supports = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return "bfloat16" if supports and _has_bf16_products() else "float32"


def _has_bf16_products() -> bool:
    try:
        flags = set(Path("/proc/cpuinfo").read_text().split("flags", 1)[1].split("\n", 1)[0].split())
    except (OSError, IndexError):
        return False
    return bool(flags & {"avx512_bf16", "amx_bf16"})


def _ready(
    config: EngineConfig,
    checkpoint: Checkpoint,
    memory: MemoryPlan,
    runner: ModelRunner,
    device: str,
    dtype: DType,
    kv_dtype: KVDType,
    summary: list[str],
) -> Ready:
    spec = checkpoint.spec
    return Ready(
        pid=os.getpid(),
        model=config.public_name,
        family=spec.family,
        runner=runner.name,
        device=device,
        dtype=dtype,
        kv_dtype=kv_dtype,
        block_size=memory.block_size,
        num_blocks=memory.num_blocks,
        max_model_len=memory.max_model_len,
        max_num_seqs=config.max_num_seqs,
        vocab_size=spec.vocab_size,
        eos_token_ids=list(spec.eos_token_ids),
        weights_bytes=memory.weights_bytes,
        kv_bytes=memory.kv_bytes,
        summary=summary,
    )
