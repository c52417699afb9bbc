"""The native runner and the torch reference give the same answers on the same crowded engine.

Small pool, forks, preemptions, prefix hits, windows, prompt logprobs, sampling with penalties: all at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tandem.config.engine import EngineConfig
from tandem.core.clock import ManualClock
from tandem.core.sampling_params import SamplingParams
from tandem.engine.build import build_engine
from tandem.engine.kernels.cpu.native import load_kernels
from tandem.engine.kvcache.layer_groups import group_layers
from tandem.engine.kvcache.manager import blocks_for_length
from tandem.engine.loading.opening import open_checkpoint
from tandem.engine.messages import NewRequest, Output, TokenLogprobs
from tests.engine.models.tiny import VOCAB, save_random
from tests.engine.models.tiny_families import CONFIGS

Answers = dict[tuple[str, int], list[int]]
Scores = dict[str, list[TokenLogprobs | None]]


@pytest.fixture(scope="module", params=["llama", "qwen3", "gemma3", "mistral, windowed"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_random(CONFIGS[request.param](), folder)
    return folder


def requests() -> list[NewRequest]:
    shared = [(7 * i) % VOCAB for i in range(19)]
    kinds = [
        SamplingParams(temperature=0.0, max_tokens=14),
        SamplingParams(temperature=0.8, top_p=0.9, seed=3, max_tokens=12, n=2),
        SamplingParams(temperature=1.0, top_k=20, seed=4, max_tokens=10, frequency_penalty=0.5, logprobs=2),
        SamplingParams(temperature=0.0, max_tokens=6, prompt_logprobs=1, repetition_penalty=1.3),
    ]
    return [
        NewRequest(
            request_id=str(number),
            prompt_token_ids=shared[: 19 if number % 2 else 5] + [(11 * number + i) % VOCAB for i in range(4 + number)],
            sampling=kinds[number % len(kinds)],
            arrival_s=float(number),
        )
        for number in range(8)
    ]


def run(model: Path, kernels: str) -> tuple[Answers, Scores, int]:
    spec = open_checkpoint(model).spec
    groups = group_layers([spec.window(layer) for layer in range(spec.num_layers)])
    config = EngineConfig(
        model=str(model),
        dtype="float32",
        kernels=kernels,  # type: ignore[arg-type]
        num_blocks=blocks_for_length(groups, 4, 64, 24) + 0,
        block_size=4,
        max_model_len=64,
        max_num_seqs=6,
        max_num_batched_tokens=24,
        threads=1,
    )
    core = build_engine(config, open_checkpoint(model), ManualClock()).core
    for request in requests():
        core.add(request)
    answers: Answers = {}
    scores: Scores = {}
    while core.has_work:
        _collect(core.step(), answers, scores)
    assert core.stats().num_held_blocks == 0
    return answers, scores, core.stats().num_preemptions


def _collect(outputs: Sequence[Output], answers: Answers, scores: Scores) -> None:
    for output in outputs:
        answers.setdefault((output.request_id, output.index), []).extend(output.token_ids)
        if output.prompt_logprobs is not None:
            scores[output.request_id] = output.prompt_logprobs


def test_the_native_runner_answers_as_the_reference_does(model: Path) -> None:
    kernels, reason = load_kernels()
    if kernels is None:
        pytest.skip(f"no native kernels: {reason}")
    wanted, wanted_scores, num_preemptions = run(model, "reference")
    found, found_scores, _ = run(model, "native")
    spec = open_checkpoint(model).spec
    if any(spec.window(layer) is None for layer in range(spec.num_layers)):
        assert num_preemptions > 0, "the pool is meant to be too small for all"
    assert found == wanted
    assert found_scores.keys() == wanted_scores.keys() == {"3", "7"}
    for name, entries in wanted_scores.items():
        assert len(entries) == len(found_scores[name]) > 5
        for one, other in zip(entries, found_scores[name], strict=True):
            assert (one is None) == (other is None)
            if one and other:
                assert one.token_id == other.token_id
                assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
