"""CUDA graphs of decode steps: one a batch size, recorded at start, within a bound of memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

import torch

T = TypeVar("T")

MAX_BYTES = 2 << 30
"""What all graphs may hold. Sizes that don't fit any more run without a graph."""


class Recording(NamedTuple, Generic[T]):
    replay: Callable[[], None]
    outputs: T
    """Where each replay leaves its results."""


class Capture(Protocol):
    """How a step is recorded."""

    def record(self, run: Callable[[], T]) -> Recording[T]: ...

    def num_bytes(self) -> int:
        """Memory of the device that is taken now."""
        ...


class GpuCapture:
    """Graphs run one at a time, so all of them live in one pool."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, run: Callable[[], T]) -> Recording[T]:
        # Once without recording: Triton compiles, and cuBLAS takes its workspace.
        run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            outputs = run()
        return Recording(graph.replay, outputs)

    def num_bytes(self) -> int:
        return int(torch.cuda.memory_reserved())


class Recordings(Generic[T]):
    """Of the sizes that fit. Nothing may be in KV memory yet: what the first runs write there doesn't matter."""

    def __init__(
        self, run: Callable[[int], T], sizes: Sequence[int], capture: Capture, max_bytes: int = MAX_BYTES
    ) -> None:
        before = capture.num_bytes()
        self._by_size: dict[int, Recording[T]] = {}
        self.num_bytes = 0
        # Largest first: the smaller ones live in its memory.
        for size in reversed(sizes):
            if self.num_bytes > max_bytes:
                break
            self._by_size[size] = capture.record(lambda size=size: run(size))  # type: ignore[misc]
            self.num_bytes = capture.num_bytes() - before

    def __len__(self) -> int:
        return len(self._by_size)

    def get(self, size: int) -> Recording[T] | None:
        return self._by_size.get(size)
