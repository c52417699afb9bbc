"""Choosing tokens, on small rows of logits whose right answers can be worked out by hand."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch

from tandem.core.request import Rank, Request
from tandem.core.sampling_params import SamplingParams
from tandem.engine.sampling.adjust import adjust
from tandem.engine.sampling.draw import draw
from tandem.engine.sampling.logprobs import LOGPROB_FLOOR, token_logprobs
from tandem.engine.sampling.random import uniform
from tandem.engine.sampling.sampler import Row, sample

LOGITS = torch.tensor([2.0, -1.0, 0.5, 0.5, 0.0, -3.0])


def request(prompt: list[int] | None = None, output: list[int] | None = None, **params: Any) -> Request:
    made = Request("r", prompt or [0], SamplingParams(**{"seed": 1} | params), Rank(0, 0.0, 0))
    made.token_ids += output or []
    made.eos_token_ids = frozenset({5})
    return made


def adjusted(made: Request) -> list[float]:
    logits = LOGITS.clone()
    adjust(logits, made)
    values: list[float] = logits.tolist()
    return values


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"repetition_penalty": 2.0}, [1.0, -2.0, 0.25, 0.5, 0.0, -3.0]),
        ({"presence_penalty": 1.0}, [2.0, -1.0, -0.5, 0.5, 0.0, -3.0]),
        ({"frequency_penalty": 1.0}, [2.0, -1.0, -1.5, 0.5, 0.0, -3.0]),
        ({}, [2.0, -1.0, 0.5, 0.5, 0.0, -3.0]),
        ({"logit_bias": {4: 7.0}}, [2.0, -1.0, 0.5, 0.5, 7.0, -3.0]),
    ],
)
def test_penalties_and_biases(params: dict[str, Any], expected: list[float]) -> None:
    """Bug case smp-03: prompt [0, 1], output [2, 2]."""
    assert adjusted(request([0, 1], [2, 2], **params)) == expected


def test_the_first_token_already_sees_the_prompt() -> None:
    assert adjusted(request([0, 1], [], repetition_penalty=2.0))[:2] == [1.0, -2.0]
    assert adjusted(request([0, 1], [], presence_penalty=1.0)) == LOGITS.tolist()


def test_min_tokens_bans_every_end() -> None:
    """Bug case stop-04."""
    banned = adjusted(request(min_tokens=1, stop_token_ids=(3,)))
    assert [i for i, v in enumerate(banned) if v == -math.inf] == [3, 5]
    assert adjusted(request([0], [1], min_tokens=1, stop_token_ids=(3,))) == LOGITS.tolist()
    ignoring = adjusted(request(min_tokens=1, stop_token_ids=(3,), ignore_eos=True))
    assert [i for i, v in enumerate(ignoring) if v == -math.inf] == [3]


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.0},
        {"temperature": 1e-4},
        {"temperature": 1e-7},
        {"temperature": 1.0, "top_p": 1e-4},
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 1.0, "min_p": 1.0},
    ],
)
def test_extreme_settings_are_greedy(params: dict[str, Any]) -> None:
    """Bug case smp-01."""
    logits = torch.randn(4, 500, generator=torch.Generator().manual_seed(3)) * 30
    rows = [Row(request(output=[1] * i, **params), 0, i) for i in range(4)]
    assert sample(logits, rows).token_ids == logits.argmax(-1).tolist()


def test_neighbours_do_not_touch_each_other() -> None:
    """Bug case smp-01: a banned-to-one greedy row beside a random one; logits stay as they were."""
    logits = torch.randn(2, 50, generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    only = request(temperature=0.0, logit_bias={i: -100.0 for i in range(50) if i != 7})
    free = request(temperature=1.0, seed=4)
    together = sample(logits, [Row(only, 0, 0), Row(free, 0, 1)]).token_ids
    assert together[0] == 7
    assert together[1] == sample(logits[1:], [Row(free, 0, 0)]).token_ids[0]
    assert torch.equal(before, logits)


def frequencies(params: SamplingParams, logits: torch.Tensor, draws: int = 4000) -> dict[int, float]:
    counts = Counter(draw(logits.numpy(), params, uniform(7, 0, position)) for position in range(draws))
    return {token: count / draws for token, count in counts.items()}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_distribution(temperature: float) -> None:
    found = frequencies(SamplingParams(temperature=temperature), LOGITS)
    for token, probability in enumerate((LOGITS / temperature).softmax(-1).tolist()):
        assert found.get(token, 0.0) == pytest.approx(probability, abs=0.03)


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({"top_k": 3}, {0, 2, 3}),
        ({"top_k": 100}, {0, 1, 2, 3, 4, 5}),
        ({"top_p": 0.6}, {0}),
        ({"top_p": 0.7}, {0, 2}),
        ({"min_p": 0.2}, {0, 2, 3}),
        ({"top_k": 4, "min_p": 0.2}, {0, 2, 3}),
        ({"top_k": 3, "top_p": 0.7}, {0, 2}),
    ],
)
def test_the_likely_set(params: dict[str, Any], kept: set[int]) -> None:
    found = frequencies(SamplingParams(temperature=1.0, **params), LOGITS)
    # Equal logits (tokens 2 and 3) may stand for each other at the edge of the set.
    assert {2 if t == 3 else t for t in found} == {2 if t == 3 else t for t in kept}
    assert len(found) == len(kept)


@pytest.mark.parametrize("params", [{"top_p": 0.97}, {"top_k": 3000}, {"min_p": 1e-4, "top_p": 0.99}, {"top_p": 0.2}])
def test_a_flat_distribution_needs_more_than_the_first_try(params: dict[str, Any]) -> None:
    logits = torch.randn(5000, generator=torch.Generator().manual_seed(2)) * 0.1
    ranked = logits.argsort(descending=True)
    probabilities = logits.double().softmax(-1)[ranked]
    limit = params.get("top_k", 5000)
    keep = (probabilities[:limit] >= params.get("min_p", 0.0) * probabilities[0]).sum()
    kept = probabilities[:keep] / probabilities[:keep].sum()
    size = int(((kept.cumsum(-1) - kept) < params.get("top_p", 1.0)).sum())
    largest = draw(logits.numpy(), SamplingParams(temperature=1.0, **params), 1.0 - 1e-12)
    assert largest == int(ranked[size - 1])


def test_random_numbers_depend_on_seed_answer_and_position_only() -> None:
    numbers = [uniform(seed, answer, position) for seed in (0, 1, -5) for answer in (0, 1) for position in (0, 1, 2)]
    assert len(set(numbers)) == len(numbers)
    assert all(0.0 <= number < 1.0 for number in numbers)
    assert uniform(1, 0, 0) == uniform(1, 0, 0)
    many = [uniform(9, 0, position) for position in range(5000)]
    assert sum(many) / len(many) == pytest.approx(0.5, abs=0.02)


def test_the_same_seed_gives_the_same_token_in_any_batch() -> None:
    logits = torch.randn(8, 300, generator=torch.Generator().manual_seed(1))
    made = request(temperature=0.9, top_p=0.9, seed=42)
    alone = sample(logits[3:4], [Row(made, 0, 0)]).token_ids[0]
    others = [Row(request(temperature=1.0, seed=i), 0, i) for i in range(8) if i != 3]
    assert sample(logits, [*others, Row(made, 0, 3)]).token_ids[-1] == alone


def test_logprobs_are_the_models_own_and_never_infinite() -> None:
    """Bug case lp-03."""
    row = torch.tensor([[1.0, -math.inf, 3.0, 2.0]])
    (report,) = token_logprobs(row, [3], 4)
    assert (report.token_id, report.rank) == (3, 2)
    assert report.logprob == pytest.approx(float(row.log_softmax(-1)[0, 3]))
    assert [token for token, _ in report.top] == [2, 3, 0]
    assert all(math.isfinite(p) and p <= 0 for _, p in report.top)
    assert token_logprobs(row, [1], 0)[0].logprob == LOGPROB_FLOOR


def test_reported_logprobs_ignore_temperature_and_bias() -> None:
    logits = LOGITS[None]
    plain = sample(logits, [Row(request(temperature=0.0, logprobs=2), 0, 0)]).logprobs
    biased = sample(logits, [Row(request(temperature=0.0, logprobs=2, logit_bias={1: 100.0}), 0, 0)]).logprobs
    assert plain is not None
    assert biased is not None
    assert plain[0] is not None
    assert biased[0] is not None
    assert plain[0].top == biased[0].top
    assert biased[0].token_id == 1
    assert biased[0].logprob == pytest.approx(float(LOGITS.log_softmax(-1)[1]), abs=1e-6)
