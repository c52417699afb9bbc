"""How much memory there is, and what it is divided into: weights, blocks of KV, and the longest context that fits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

from tandem.config.engine import EngineConfig
from tandem.core.errors import ConfigError, MemoryTooSmall
from tandem.core.types import DType, KVDType
from tandem.engine.kvcache.layer_groups import LayerGroup, group_layers
from tandem.engine.kvcache.manager import blocks_for_length
from tandem.engine.models.spec import ModelSpec

ELEMENT_BYTES: dict[DType, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Sizes in bytes, lengths in tokens."""

    groups: tuple[LayerGroup, ...]
    block_size: int
    block_bytes: int
    num_blocks: int
    max_model_len: int
    weights_bytes: int
    is_fitted: bool
    """The context was shortened to what the memory holds."""

    @property
    def kv_bytes(self) -> int:
        return self.num_blocks * self.block_bytes

    @property
    def full_length_requests(self) -> float:
        """How many requests of the longest length fit at once."""
        return self.num_blocks / blocks_for_length(self.groups, self.block_size, self.max_model_len)

    def describe(self) -> list[str]:
        """Lines for people."""
        fitted = " (shortened to fit the memory)" if self.is_fitted else ""
        return [
            f"weights   {_size(self.weights_bytes)}",
            f"KV cache  {_size(self.kv_bytes)}: {self.num_blocks:,} blocks of {self.block_size} tokens",
            f"context   {self.max_model_len:,} tokens{fitted}; {self.full_length_requests:.1f} of that length at once",
        ]


def plan_memory(
    spec: ModelSpec, config: EngineConfig, kv_dtype: KVDType, weights_bytes: int, free_bytes: int | None = None
) -> MemoryPlan:
    """Divide the memory: `free_bytes` of a device, or what the system has.

    Raises `MemoryTooSmall` saying what would fit, or `ConfigError` for an impossible length.
    """
    groups = group_layers([spec.window(layer) for layer in range(spec.num_layers)])
    layers = len(groups[0].layers)
    block_bytes = layers * spec.num_kv_heads * config.block_size * kv_bytes_per_head(spec.head_dim, kv_dtype)
    wanted = _wanted_length(spec, config)
    free_bytes = available_bytes() if free_bytes is None else free_bytes
    num_blocks = config.num_blocks or _blocks_at_hand(config, block_bytes, weights_bytes, free_bytes)
    # Windowed layers hold a whole chunk of a prompt beside their window while it is computed.
    chunk = config.max_num_batched_tokens
    capacity = capacity_tokens(groups, config.block_size, num_blocks, chunk, wanted)
    if capacity < 2:
        raise MemoryTooSmall(_no_room(config, weights_bytes, free_bytes))
    if config.max_model_len is not None and capacity < wanted:
        needed = blocks_for_length(groups, config.block_size, wanted, chunk) * block_bytes
        raise MemoryTooSmall(
            f"max_model_len is {wanted:,} tokens, whose KV takes {_size(needed)}, but "
            f"{_size(num_blocks * block_bytes)} are there: {capacity:,} tokens would fit. Lower --max-model-len, "
            f"or raise {_what_to_raise(config)}."
        )
    length = min(wanted, capacity)
    if config.num_blocks is None:
        # More blocks than all seats can fill at full length would never be used.
        num_blocks = min(num_blocks, config.max_num_seqs * blocks_for_length(groups, config.block_size, length, chunk))
    return MemoryPlan(groups, config.block_size, block_bytes, num_blocks, length, weights_bytes, length < wanted)


def kv_bytes_per_head(head_dim: int, kv_dtype: KVDType) -> int:
    """Bytes of one token's key and value in one head of one layer; int8 has a float32 scale for either."""
    return 2 * (head_dim + 4) if kv_dtype == "int8" else 2 * head_dim * ELEMENT_BYTES[kv_dtype]


def _what_to_raise(config: EngineConfig) -> str:
    """The setting that the size of the KV comes from."""
    if config.num_blocks is not None:
        return f"--num-blocks (now {config.num_blocks})"
    if config.kv_memory_gib is not None:
        return f"--kv-memory-gib (now {config.kv_memory_gib:g})"
    return f"--memory-utilization (now {config.memory_utilization:g})"


def _wanted_length(spec: ModelSpec, config: EngineConfig) -> int:
    wanted = config.max_model_len or spec.max_position
    if wanted > spec.max_position:
        raise ConfigError(
            f"max_model_len is {wanted:,}, but the model was made for {spec.max_position:,} tokens; give at most that."
        )
    return wanted


def _blocks_at_hand(config: EngineConfig, block_bytes: int, weights_bytes: int, free_bytes: int) -> int:
    if config.kv_memory_gib is None:
        return max(0, int(free_bytes * config.memory_utilization) - weights_bytes) // block_bytes
    kv_bytes = int(config.kv_memory_gib * _GIB)
    if kv_bytes + weights_bytes > free_bytes:
        raise MemoryTooSmall(
            f"kv_memory_gib is {config.kv_memory_gib:g} and the weights take {_size(weights_bytes)}, but only "
            f"{_size(free_bytes)} are free: {max(0, free_bytes - weights_bytes) / _GIB:.2f} GiB are left for KV."
        )
    return kv_bytes // block_bytes


def capacity_tokens(groups: tuple[LayerGroup, ...], block_size: int, num_blocks: int, chunk: int, longest: int) -> int:
    """The longest single sequence, up to `longest`, that so many blocks hold when computed `chunk` tokens a step."""
    low, high = 0, longest
    while low < high:
        middle = (low + high + 1) // 2
        fits = blocks_for_length(groups, block_size, middle, chunk) <= num_blocks
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


def _no_room(config: EngineConfig, weights_bytes: int, free_bytes: int) -> str:
    if config.kv_memory_gib is not None:
        return f"kv_memory_gib is {config.kv_memory_gib:g}, which holds fewer than two tokens; give it more."
    return (
        f"No memory is left for KV: {_size(free_bytes)} are free, of which Tandem may use "
        f"{config.memory_utilization:.0%}, and the weights take {_size(weights_bytes)}. Free some memory, raise "
        "--memory-utilization or --kv-memory-gib, or take a smaller model or dtype."
    )


def available_bytes() -> int:
    """Memory this process can still take: the machine's, or its control group's where that is less."""
    free = int(psutil.virtual_memory().available)
    limit = _control_group_room()
    return free if limit is None else min(free, limit)


def _control_group_room() -> int | None:
    for limit_file, usage_file in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            limit, usage = Path(limit_file).read_text().strip(), Path(usage_file).read_text().strip()
        except OSError:
            continue
        return int(limit) - int(usage) if limit.isdigit() else None
    return None


def _size(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:.2f} GiB" if num_bytes >= _GIB else f"{num_bytes / (1 << 20):.0f} MiB"
