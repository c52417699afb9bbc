"""Sizes, requests and clocks that the parts share."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from tandem.core.request import Rank, Request
from tandem.core.sampling_params import SamplingParams
from tandem.engine.models.spec import ModelSpec, RopeScaling
from tandem.engine.scheduler import ScheduledRequest, StepPlan


@dataclass(frozen=True)
class Sizes:
    """What is measured; `layers` of the model whole, `few_layers` of its quantised forms."""

    context: int = 1024
    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    prompts: tuple[int, ...] = (128, 512, 2048, 8192)
    few_prompts: tuple[int, ...] = (512, 2048)
    table_contexts: tuple[int, ...] = (1024, 8192, 131072)
    product_tokens: tuple[int, ...] = (1, 8, 16, 32, 64, 256, 2048)
    block_size: int = 16
    layers: int = 32
    few_layers: int = 4
    repeats: int = 10
    hidden: int = 4096
    inner: int = 14336
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    vocab: int = 128256
    max_position: int = 131072
    probe_bytes: int = 4 << 30
    probe_side: int = 8192

    def model(self, layers: int) -> ModelSpec:
        return ModelSpec(
            family="llama",
            num_layers=layers,
            hidden_size=self.hidden,
            intermediate_size=self.inner,
            num_heads=self.heads,
            num_kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            vocab_size=self.vocab,
            max_position=self.max_position,
            rms_norm_eps=1e-5,
            rope_theta=500000.0,
            rope_scaling=RopeScaling(kind="llama3", factor=8.0),
        )


TINY = Sizes(
    context=8,
    batches=(1, 3),
    prompts=(8,),
    few_prompts=(8,),
    table_contexts=(64,),
    product_tokens=(1, 20),
    block_size=4,
    layers=1,
    few_layers=1,
    repeats=1,
    hidden=64,
    inner=64,
    heads=2,
    kv_heads=1,
    head_dim=32,
    vocab=97,
    max_position=64,
    probe_bytes=1 << 20,
    probe_side=64,
)
"""For a dry run."""


def make_request(num_tokens: int, num_blocks: int, num_groups: int, *, first_block: int, seed: int = 0) -> Any:
    """With blocks of its own from `first_block` on: `num_blocks` in every group."""
    tokens = torch.randint(0, 90, (num_tokens,), generator=torch.Generator().manual_seed(seed)).tolist()
    request = Request("r", tokens, SamplingParams(temperature=0.0), Rank(0, 0.0, seed), max_tokens=10)
    begins = [first_block + group * num_blocks for group in range(num_groups)]
    request.block_tables = tuple(list(range(begin, begin + num_blocks)) for begin in begins)  # type: ignore[arg-type]
    return request


def make_plan(work: Sequence[tuple[Any, int, int]]) -> StepPlan:
    """(request, start, tokens) each."""
    return StepPlan([ScheduledRequest(*item) for item in work], num_tokens=sum(count for _, _, count in work))


def gpu_ms(run: Callable[[], object], repeats: int) -> float:
    """Median time between two events around `run`, after two turns that don't count; without a GPU, of the clock."""
    if not torch.cuda.is_available():
        return wall_ms(run, repeats)
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


def wall_ms(run: Callable[[], object], repeats: int) -> float:
    times = []
    for turn in range(repeats + 2):
        _wait()
        begin = time.perf_counter()
        run()
        _wait()
        if turn >= 2:
            times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


@dataclass(frozen=True)
class Floors:
    bytes_s: float
    """Of a large copy, read and written."""
    operations_s: float
    """Of a large product in bf16, two a multiplication."""


def measure_floors(device: torch.device, sizes: Sizes) -> Floors:
    source = torch.empty(sizes.probe_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    bandwidth = 2 * source.numel() / (gpu_ms(partial(target.copy_, source), sizes.repeats) / 1e3)
    del source, target
    side = sizes.probe_side
    a, b = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    return Floors(bandwidth, 2 * side**3 / (gpu_ms(lambda: a @ b, sizes.repeats) / 1e3))
