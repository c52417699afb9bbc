"""The runner of compiled GPU engines against the plain one, its graphs run as they were fused, uncompiled: buckets and
their edges, steps that are filled up, recorded steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule

from tandem.compiler.cuda import fuse_for_gpu
from tandem.compiler.cuda_graph import of_single_tokens
from tandem.compiler.progress import SilentStages
from tandem.engine.kernels.ops.kv_cache import cache_shape
from tandem.engine.models.spec import ModelSpec
from tandem.engine.quantization.matrix import QuantizedMatrix
from tandem.engine.runner.compiled_cuda import CompiledCudaRunner, Sizes, StepGraphs
from tandem.engine.runner.cuda_graphs import Recording, Recordings
from tandem.engine.runner.graphs import Graph
from tests.engine.kernels.triton.cases import TINY, RandomCheckpoint
from tests.engine.kernels.triton.test_runner import BUDGET, LENGTH, SEATS, Engine

T = TypeVar("T")
BLOCK_SIZE = 4


class Weights:
    """What a quantised model gives, in floats."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self._checkpoint = RandomCheckpoint(spec)

    def matrix(self, name: str) -> QuantizedMatrix | Tensor:
        return self._checkpoint.read(name, torch.float32)

    def vector(self, name: str) -> Tensor:
        values = self._checkpoint.read(name, torch.float32)
        return values + 1 if self.spec.norm_plus_one and "norm" in name else values


class FakeCapture:
    """Records nothing: a replay computes anew, into the same memory."""

    def __init__(self) -> None:
        self.recorded = self.replayed = 0

    def record(self, run: Callable[[], T]) -> Recording[T]:
        outputs: Any = run()
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            for old, new in zip(outputs, run(), strict=True):  # type: ignore[call-overload]
                old.copy_(new)

        return Recording(replay, outputs)

    def num_bytes(self) -> int:
        return self.recorded * (1 << 20)


def flat(module: GraphModule, groups: int, calls: list[tuple[str, int]], name: str) -> Graph:
    def run(arguments: list[Tensor]) -> list[Tensor]:
        ids, positions, starts, lengths, *rest = arguments
        calls.append((name, len(ids)))
        tables, slots, (rows, *caches) = rest[:groups], rest[groups : 2 * groups], rest[2 * groups :]
        return [module(ids, positions, starts, lengths, tables, slots, rows, caches)]

    return run


class Making:
    def __init__(self, device: torch.device, kv_dtype: torch.dtype = torch.float32) -> None:
        self.device, self.kv_dtype = device, kv_dtype
        self.capture = FakeCapture()
        self.calls: list[tuple[str, int]] = []

    def make(self, spec: ModelSpec, shape: tuple[int, ...]) -> CompiledCudaRunner:
        fused = fuse_for_gpu(Weights(spec), torch.float32, self.kv_dtype, SilentStages())  # type: ignore[arg-type]
        fused.graph.to(self.device)
        groups, single = len(fused.groups), of_single_tokens(fused.graph)
        named = {"single": single, "decode": single, "mixed": fused.graph}
        graphs = {name: flat(module, groups, self.calls, name) for name, module in named.items()}
        own = cache_shape(shape[1], shape[2], shape[3], shape[4], self.kv_dtype)
        memory = [torch.zeros(own, dtype=self.kv_dtype, device=self.device) for _ in range(fused.caches.count)]
        return CompiledCudaRunner(
            StepGraphs(**graphs, constants={}),
            memory,
            Sizes(SEATS, BUDGET, LENGTH, BLOCK_SIZE, groups),
            name="test",
            capture=self.capture,
        )


@pytest.mark.parametrize("name", ["llama", "gemma"])
def test_serves_what_the_plain_runner_serves(name: str, device: torch.device) -> None:
    tested = Making(device)
    engine = Engine(TINY[name], device, kv_dtype=torch.float32, num_blocks=180, tested=tested.make)
    engine.add("greedy", 30, seed=1)
    engine.add("short", 1, seed=2, max_tokens=3)
    engine.add("forks", 10, seed=3, n=2, temperature=0.9)
    engine.add("scored", 14, seed=4, prompt_logprobs=1, logprobs=2)
    for _ in range(3):
        engine.core.step()
    engine.add("the same prompt", 30, seed=1, max_tokens=6)
    engine.add("nothing to generate", 9, seed=5, max_tokens=0)
    engine.run()
    assert engine.both.num_copies
    assert tested.capture.replayed
    assert {called for called, _ in tested.calls} >= {"decode", "mixed"}


@pytest.mark.parametrize(("count", "bucket"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (6, 8)])
def test_a_batch_takes_the_next_bucket_and_gives_what_it_gives_alone(
    count: int, bucket: int, device: torch.device
) -> None:
    tested = Making(device)
    engine = Engine(TINY["llama"], device, kv_dtype=torch.float32, num_blocks=60, tested=tested.make)
    for seed in range(count):
        engine.add(f"{seed}", 3, seed=seed, max_tokens=3)
    engine.core.step()
    tested.calls.clear()
    engine.run()
    assert tested.calls
    assert {size for _, size in tested.calls} == {bucket}
    assert {name for name, _ in tested.calls} == {"single" if bucket == 1 else "decode"}


def test_preempted_requests_come_back(device: torch.device) -> None:
    engine = Engine(TINY["llama"], device, kv_dtype=torch.float32, num_blocks=15, tested=Making(device).make)
    for seed in range(3):
        engine.add(f"{seed}", 15, seed=seed, max_tokens=10)
    engine.run()
    assert engine.both.num_preempted


def test_int8_memory_is_forked_with_its_scales(device: torch.device) -> None:
    runner = Making(device, torch.int8).make(TINY["llama"], (2, 12, 2, BLOCK_SIZE, 32))
    runner._caches[0][:, 3] = 5
    from tandem.engine.kernels.ops.kv_cache import split_cache
    from tandem.engine.kvcache.manager import BlockCopy

    data, scales = split_cache(runner._caches[0])
    assert scales is not None
    scales[:, 3] = 0.25
    runner._copy_blocks([BlockCopy(3, 7)])  # type: ignore[arg-type]
    assert torch.equal(data[:, 7], data[:, 3])
    assert bool((scales[:, 7] == 0.25).all())
    assert not scales[:, 8].any()


def test_graphs_are_recorded_largest_first_and_within_their_bound() -> None:
    order: list[int] = []

    def run(size: int) -> tuple[Tensor]:
        order.append(size)
        return (torch.zeros(size),)

    recordings = Recordings(run, [1, 2, 4, 8], FakeCapture(), max_bytes=(2 << 20) - 1)
    assert order == [8, 4]
    assert len(recordings) == 2
    assert recordings.num_bytes == 2 << 20
    assert recordings.get(2) is None
    found = recordings.get(8)
    assert found is not None
    assert found.outputs[0].shape == (8,)


def test_the_name_shows_graphs_and_memory(device: torch.device) -> None:
    runner = Making(device).make(TINY["llama"], (2, 12, 2, BLOCK_SIZE, 32))
    assert runner.name == "test, 4 CUDA graphs of 4 MiB"
