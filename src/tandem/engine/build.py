"""Puts an engine together: resolves the settings, divides the memory, loads the weights, and makes the core."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from tandem.config.engine import EngineConfig
from tandem.core.clock import Clock
from tandem.engine.core import EngineCore
from tandem.engine.kvcache.events import CacheEventLog
from tandem.engine.kvcache.manager import KVCacheManager
from tandem.engine.loading.base import Checkpoint
from tandem.engine.loading.engine_file import EngineFile
from tandem.engine.memory import ELEMENT_BYTES, MemoryPlan, plan_memory
from tandem.engine.messages import Ready
from tandem.engine.runner.base import ModelRunner
from tandem.engine.runner.making import Machine, free_device_bytes, make_runner, resolve_machine
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
    machine = resolve_machine(config, checkpoint)
    spec = checkpoint.spec
    # Planned before anything is loaded: what doesn't fit is refused at once, and the estimate is exact for these types.
    weights_bytes = _weights_bytes(checkpoint, machine)
    memory = plan_memory(spec, config, machine.kv_dtype, weights_bytes, free_device_bytes(machine))
    runner = make_runner(config, checkpoint, memory, machine)
    core = _make_core(config, checkpoint, memory, runner, clock)
    size = f"{spec.num_parameters / 1e6:.0f} M parameters"
    summary = [
        f"model     {config.public_name}: {spec.family}, {size}, {_precision(checkpoint, machine)}",
        f"runner    {runner.name}, {machine.threads} threads",
        *memory.describe(),
        f"loaded in {time.monotonic() - started_s:.1f} s",
    ]
    return BuiltEngine(core, _ready(config, checkpoint, memory, runner, machine, summary))


def _weights_bytes(checkpoint: Checkpoint, machine: Machine) -> int:
    if isinstance(checkpoint, EngineFile):
        return checkpoint.manifest.weights_bytes
    return checkpoint.spec.num_parameters * ELEMENT_BYTES[machine.dtype]


def _precision(checkpoint: Checkpoint, machine: Machine) -> str:
    return checkpoint.manifest.quantization.precision if isinstance(checkpoint, EngineFile) else machine.dtype


def _make_core(
    config: EngineConfig, checkpoint: Checkpoint, memory: MemoryPlan, runner: ModelRunner, clock: Clock
) -> EngineCore:
    events = CacheEventLog(memory.groups, memory.block_size)
    kv = KVCacheManager(
        memory.num_blocks,
        memory.block_size,
        memory.groups,
        enable_prefix_caching=config.enable_prefix_caching,
        hash_seed=config.hash_seed,
        listener=events,
    )
    scheduler = Scheduler(
        kv,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=memory.max_model_len,
    )
    return EngineCore(
        scheduler,
        runner,
        clock,
        eos_token_ids=frozenset(checkpoint.spec.eos_token_ids),
        watch_text=text_watcher(checkpoint.text),
        stats=StatsKeeper(scheduler, checkpoint.spec),
        cache_events=events,
    )


def _ready(
    config: EngineConfig,
    checkpoint: Checkpoint,
    memory: MemoryPlan,
    runner: ModelRunner,
    machine: Machine,
    summary: list[str],
) -> Ready:
    spec = checkpoint.spec
    return Ready(
        pid=os.getpid(),
        model=config.public_name,
        family=spec.family,
        runner=runner.name,
        device=machine.device,
        dtype=machine.dtype,
        kv_dtype=machine.kv_dtype,
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
