"""Which cores, GPUs and memory each pool of a machine gets. One engine owns a device; pools on one device share memory.

Two engines that compute on the same cores at once spin against each other, and both come almost to a stand: so cores
are divided, and only pools that are told to be on one device are put there together.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from tandem.autoscaler.providers.base import EngineSpec
from tandem.core.errors import ConfigError

_FORM: Final = re.compile(r"(cpu|cuda)(?::([0-9]+)(?:-([0-9]+))?)?")


@dataclass(frozen=True, slots=True)
class Placement:
    """What one instance may use."""

    cores: tuple[int, ...] = ()
    """Empty: any."""
    gpus: tuple[int, ...] = ()
    memory_share: float = 1.0
    """Of the memory of its device, 0..1."""

    def environment(self) -> dict[str, str]:
        """A GPU that isn't named isn't seen; thread pools are no larger than the cores."""
        settings = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, self.gpus))}
        if self.cores:
            settings |= {"OMP_NUM_THREADS": str(len(self.cores)), "OMP_WAIT_POLICY": "PASSIVE"}
        return settings


def parse_devices(devices: Sequence[str]) -> Placement:
    """ "cpu", "cpu:0-3", "cuda:1". Raises `ConfigError`."""
    cores: set[int] = set()
    gpus: set[int] = set()
    for device in devices:
        found = _FORM.fullmatch(device)
        if found is None:
            raise ConfigError(f'devices has {device!r}; it must be like "cpu", "cpu:0-3", "cuda:0" or "cuda:0-1".')
        kind, first, last = found.groups()
        if first is None:
            (cores if kind == "cpu" else gpus).update(machine_cores() if kind == "cpu" else [0])
            continue
        numbers = range(int(first), int(last or first) + 1)
        if not numbers:
            raise ConfigError(f"devices has {device!r}, whose last number is smaller than its first.")
        (cores if kind == "cpu" else gpus).update(numbers)
    if missing := cores - set(machine_cores()):
        raise ConfigError(
            f"devices names core {min(missing)}; this process may use {_ranges(machine_cores())}. Name some of those."
        )
    return Placement(tuple(sorted(cores)), tuple(sorted(gpus)))


def machine_cores() -> list[int]:
    """Those that this process may use."""
    return sorted(os.sched_getaffinity(0))


def divide(specs: Sequence[EngineSpec], memory_share: float) -> dict[str, Placement]:
    """pool → what its instances may use together. Pools that name no device divide the cores that nobody named, or all
    of them where none is left. `memory_share`: of a device, for all engines together."""
    placed = {spec.pool: parse_devices(spec.devices) for spec in specs if spec.devices}
    unplaced = [spec for spec in specs if not spec.devices]
    named = {core for placement in placed.values() for core in placement.cores}
    free = [core for core in machine_cores() if core not in named] or machine_cores()
    for spec, cores in zip(unplaced, split(free, len(unplaced)), strict=True):
        placed[spec.pool] = Placement(tuple(cores))
    return {
        spec.pool: Placement(
            placed[spec.pool].cores, placed[spec.pool].gpus, _memory_share(spec, specs, placed, memory_share)
        )
        for spec in specs
    }


def part(placement: Placement, index: int, num_parts: int) -> Placement:
    """The share of one instance of several: a GPU each, or some cores each, and of the memory accordingly."""
    if num_parts <= 1:
        return placement
    cores = split(placement.cores, num_parts)[index] if placement.cores else []
    if placement.gpus:
        gpus = split(placement.gpus, num_parts)[index]
        sharing = num_parts if len(placement.gpus) < num_parts else 1
        return Placement(tuple(cores), tuple(gpus), placement.memory_share / sharing)
    return Placement(tuple(cores), (), placement.memory_share / num_parts)


def split(items: Sequence[int], num_parts: int) -> list[list[int]]:
    """Evenly, neighbours together. Fewer items than parts: they are shared in turn."""
    if num_parts > len(items):
        return [[items[index % len(items)]] if items else [] for index in range(num_parts)]
    bounds = [len(items) * index // max(1, num_parts) for index in range(num_parts + 1)]
    return [list(items[begin:end]) for begin, end in pairwise(bounds)]


def _memory_share(
    spec: EngineSpec, specs: Sequence[EngineSpec], placed: dict[str, Placement], memory_share: float
) -> float:
    """What others on the same memory haven't claimed is divided evenly among those who claimed nothing."""
    sharing = [other for other in specs if _share_memory(placed[spec.pool], placed[other.pool])]
    claimed = sum(other.memory_share for other in sharing if other.memory_share is not None)
    if claimed > 1 + 1e-9:
        names = ", ".join(other.pool for other in sharing)
        raise ConfigError(f"pools {names} share a device, and their memory shares come to {claimed:g}; at most 1.")
    if spec.memory_share is not None:
        return spec.memory_share
    rest = max(0.0, memory_share - claimed)
    if rest <= 0:
        raise ConfigError(f"pool {spec.pool} has no memory: the others on its device have claimed {claimed:g} of it.")
    return rest / sum(other.memory_share is None for other in sharing)


def _share_memory(one: Placement, other: Placement) -> bool:
    """All cores have one memory; each GPU has its own."""
    if one.gpus or other.gpus:
        return bool(set(one.gpus) & set(other.gpus))
    return True


def _ranges(cores: Sequence[int]) -> str:
    return f"{cores[0]}-{cores[-1]}" if len(cores) > 1 else str(cores[0])
