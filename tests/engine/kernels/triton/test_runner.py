"""CudaRunner and its decoder against the plain ones: step by step over the scheduler's own plans, with forks,
preemption, windows and prefix hits, and logits of whole models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tandem.core.clock import ManualClock
from tandem.core.sampling_params import SamplingParams
from tandem.engine.core import EngineCore
from tandem.engine.kernels.triton.decoder import TritonDecoder
from tandem.engine.kernels.triton.language import make_kv
from tandem.engine.kvcache.layer_groups import group_layers
from tandem.engine.kvcache.manager import KVCacheManager
from tandem.engine.messages import NewRequest
from tandem.engine.models.decoder import Decoder
from tandem.engine.models.spec import ModelSpec
from tandem.engine.runner.base import ModelRunner, StepResult
from tandem.engine.runner.batch import BlockTableRows
from tandem.engine.runner.cuda import CudaRunner, buckets
from tandem.engine.runner.eager import EagerRunner
from tandem.engine.scheduler import Scheduler, StepPlan
from tandem.engine.stats import StatsKeeper
from tests.engine.kernels.triton.cases import TINY, RandomCheckpoint

SEATS, BUDGET, LENGTH, BLOCKS = 6, 24, 96, 60


class Both:
    """Runs every plan on two runners, and fails at the first token on which they differ."""

    name = "both"

    def __init__(self, expected: ModelRunner, tested: ModelRunner) -> None:
        self.runners = expected, tested
        self.plans: list[StepPlan] = []
        self.num_preempted = self.num_copies = 0

    def execute(self, plan: StepPlan) -> StepResult:
        self.num_preempted += len(plan.preempted)
        self.num_copies += len(plan.block_copies)
        expected, got = (runner.execute(plan) for runner in self.runners)
        assert got.token_ids == expected.token_ids
        assert (got.logprobs is None) == (expected.logprobs is None)
        assert got.prompt_logprobs.keys() == expected.prompt_logprobs.keys()
        for request, scores in expected.prompt_logprobs.items():
            for mine, theirs in zip(got.prompt_logprobs[request], scores, strict=True):
                assert mine is not None
                assert theirs is not None
                assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-3)
        return expected

    def release(self, request: Any) -> None:
        for runner in self.runners:
            runner.release(request)


class Engine:
    """`tested`: makes the runner of a spec and the shape of its caches, if it isn't to be `CudaRunner`."""

    def __init__(
        self,
        spec: ModelSpec,
        device: torch.device,
        *,
        kv_dtype: torch.dtype,
        num_blocks: int,
        tested: Callable[[ModelSpec, tuple[int, ...]], ModelRunner] | None = None,
    ) -> None:
        size = 4
        groups = group_layers([spec.window(layer) for layer in range(spec.num_layers)])
        shape = (2, num_blocks, spec.num_kv_heads, size, spec.head_dim)
        checkpoint = RandomCheckpoint(spec)
        plain = EagerRunner(
            Decoder(spec, groups, checkpoint, torch.float32),
            [torch.full(shape, float("nan")) for _ in groups[0].layers],
            BlockTableRows(len(groups), SEATS, LENGTH // size),
            "test",
        )
        self.tested: ModelRunner
        if tested is not None:
            self.tested = tested(spec, shape)
        else:
            self.tested = CudaRunner(
                TritonDecoder(spec, groups, checkpoint, torch.float32, device),
                [make_kv(shape, kv_dtype, device) for _ in groups[0].layers],
                max_num_seqs=SEATS,
                max_num_batched_tokens=BUDGET,
                max_model_len=LENGTH,
            )
        self.both = Both(plain, self.tested)
        kv = KVCacheManager(num_blocks, size, groups)
        self.scheduler = Scheduler(kv, max_num_seqs=SEATS, max_num_batched_tokens=BUDGET, max_model_len=LENGTH)
        self.core = EngineCore(
            self.scheduler,
            self.both,
            ManualClock(),
            eos_token_ids=frozenset(),
            watch_text=lambda new: None,
            stats=StatsKeeper(self.scheduler, spec),
        )

    def add(self, name: str, num_tokens: int, seed: int, **wanted: Any) -> None:
        prompt = torch.randint(0, 211, (num_tokens,), generator=torch.Generator().manual_seed(seed)).tolist()
        sampling = SamplingParams(**{"seed": seed, "max_tokens": 4, "temperature": 0.0} | wanted)
        self.core.add(NewRequest(request_id=name, prompt_token_ids=prompt, sampling=sampling, arrival_s=0.0))

    def run(self) -> None:
        for _ in range(200):
            if not self.core.has_work:
                return
            self.core.step()
        raise AssertionError("work is left")


@pytest.mark.parametrize("name", ["llama", "gemma"])
def test_serves_what_the_plain_runner_serves(name: str, device: torch.device) -> None:
    engine = Engine(TINY[name], device, kv_dtype=torch.float32, num_blocks=BLOCKS * 3)
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


def test_preempted_requests_come_back(device: torch.device) -> None:
    engine = Engine(TINY["llama"], device, kv_dtype=torch.float32, num_blocks=15)
    for seed in range(3):
        engine.add(f"{seed}", 15, seed=seed, max_tokens=10)
    engine.run()
    assert engine.both.num_preempted


def logits_of(engine: Engine, runner: Any, lengths: list[int]) -> torch.Tensor:
    """Of all tokens of one step that computes prompts whole."""
    from tandem.engine.runner.rows import WantedRows

    plan = engine.both.plans[-1]
    if isinstance(runner, EagerRunner):
        step = runner._build(plan, WantedRows(list(range(sum(lengths))), [], []))
        return runner._decoder.logits(runner._decoder.forward(step, runner._caches))
    layout = runner._inputs.upload(plan.scheduled, range(sum(lengths)))
    step = runner._inputs.tensors(sum(lengths), len(lengths), sum(lengths))
    hidden: torch.Tensor = runner._decoder.forward(step, layout, runner._caches)
    logits: torch.Tensor = runner._decoder.logits(hidden)
    return logits.cpu()


@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("name", TINY)
def test_logits_of_whole_models(name: str, kv_dtype: torch.dtype, device: torch.device) -> None:
    engine = Engine(TINY[name], device, kv_dtype=kv_dtype, num_blocks=BLOCKS)
    lengths = [1, 17, 4]
    for seed, length in enumerate(lengths):
        engine.add(f"{seed}", length, seed)
    engine.both.plans.append(engine.scheduler.schedule())
    expected, got = (logits_of(engine, runner, lengths) for runner in engine.both.runners)
    error = float((got - expected).norm() / expected.norm())
    assert error < (1e-5 if kv_dtype == torch.float32 else 0.03)


def test_buckets_hold_all_seats() -> None:
    assert buckets(1) == [1]
    assert buckets(6) == [1, 2, 4, 8]
    assert buckets(1000) == [1, 2, 4, 8, 16, 32, 64, 128, 256]
