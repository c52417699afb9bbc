"""The native sampler beside the numpy reference: the same uniform must give the same token."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
import pytest
import torch

from tandem.core.request import Rank, Request
from tandem.core.sampling_params import SamplingParams
from tandem.engine.kernels.cpu.native import VARIANTS, Kernels, SampleArgs, load_kernels
from tandem.engine.sampling.draw import draw
from tandem.engine.sampling.native import NativeSampler
from tandem.engine.sampling.random import uniform
from tandem.engine.sampling.sampler import Row, sample

FILTERS: list[dict[str, Any]] = [
    {},
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": 3000},
    {"top_p": 0.1},
    {"top_p": 0.95},
    {"top_p": 0.9999},
    {"min_p": 0.02},
    {"min_p": 1.0},
    {"top_k": 40, "top_p": 0.9, "min_p": 0.01},
    {"top_k": 2000, "top_p": 0.5},
]


class Alone:
    """The kernels of one instruction set without a decoder."""

    def __init__(self, kernels: Kernels, variant: str) -> None:
        self._library, self._variant = kernels.library, VARIANTS.index(variant)

    def sample(self, arguments: SampleArgs) -> None:
        wrong = self._library.tandem_sample(None, self._variant, ctypes.byref(arguments))
        assert wrong == 0

    def sample_scratch_bytes(self, vocab_size: int) -> int:
        return int(self._library.tandem_sample_scratch_bytes(vocab_size))


@pytest.fixture(params=[v for v in VARIANTS if v != "amx_emulated"])
def sampler(request: pytest.FixtureRequest) -> NativeSampler:
    kernels, reason = load_kernels()
    if kernels is None:
        pytest.skip(reason)
    if request.param not in kernels.variants:
        pytest.skip(f"no {request.param} here")
    return NativeSampler(Alone(kernels, request.param))


def request(seed: int, **params: Any) -> Request:
    return Request("r", [0], SamplingParams(**{"seed": seed, "temperature": 1.0} | params), Rank(0, 0.0, 0))


def random_logits(rows: int, vocab: int, spread: float) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(vocab)) * spread


def chosen(sampler: NativeSampler, logits: torch.Tensor, rows: list[Row]) -> list[int]:
    return sampler.sample(logits, rows, logits.argmax(-1).tolist()).token_ids


def is_same(logits: torch.Tensor, made: Request, found: int) -> bool:
    """Whether the reference chooses the same, or would if the uniform differed by rounding."""
    number = uniform(made.sampling.seed or 0, 0, 0)
    near = {draw(logits.numpy(), made.sampling, min(max(number + by, 0.0), 1 - 1e-16)) for by in (-3e-6, 0.0, 3e-6)}
    return found in near


@pytest.mark.parametrize("params", FILTERS)
@pytest.mark.parametrize(("vocab", "spread"), [(5, 1.0), (300, 3.0), (5000, 0.1), (20011, 1.0), (20011, 8.0)])
def test_draws_what_the_reference_draws(
    sampler: NativeSampler, params: dict[str, Any], vocab: int, spread: float
) -> None:
    logits = random_logits(4, vocab, spread)
    made = [request(seed, temperature=0.7 + seed / 20, **params) for seed in range(24)]
    found = chosen(sampler, logits, [Row(r, 0, i % 4) for i, r in enumerate(made)])
    assert [i for i, r in enumerate(made) if not is_same(logits[i % 4], r, found[i])] == []
    exact = [draw(logits[i % 4].numpy(), r.sampling, uniform(i, 0, 0)) for i, r in enumerate(made)]
    assert sum(a != b for a, b in zip(found, exact, strict=True)) <= 1


@pytest.mark.parametrize("params", [{"top_k": 5}, {"top_p": 0.3}, {"top_k": 600, "top_p": 0.9}, {"min_p": 0.5}, {}])
def test_equal_weights_go_by_id(sampler: NativeSampler, params: dict[str, Any]) -> None:
    logits = torch.zeros(1, 1000)
    logits[0, ::3] = -math.inf
    for seed in range(50):
        made = request(seed, **params)
        (found,) = chosen(sampler, logits, [Row(made, 0, 0)])
        assert found == draw(logits[0].numpy(), made.sampling, uniform(seed, 0, 0))


def test_a_banned_token_is_never_chosen_and_the_only_one_always(sampler: NativeSampler) -> None:
    logits = torch.full((1, 700), -math.inf)
    logits[0, 613] = -4.0
    rows = [Row(request(seed, **params), 0, 0) for seed in range(8) for params in FILTERS]
    assert set(chosen(sampler, logits, rows)) == {613}


def test_the_ends_of_the_likely_set_are_kept(sampler: NativeSampler, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = random_logits(1, 3000, 2.0)
    ranked = logits[0].argsort(descending=True).tolist()
    for number, place in ((0.0, 0), (math.nextafter(1.0, 0.0), 49)):
        monkeypatch.setattr("tandem.engine.sampling.sampler.uniform", lambda *_, number=number: number)
        assert chosen(sampler, logits, [Row(request(0, top_k=50), 0, 0)]) == [ranked[place]]
    everything = chosen(sampler, logits, [Row(request(0), 0, 0)])[0]
    assert everything == 2999


@pytest.mark.parametrize("temperature", [0.0, 1e-5, 1e-3])
def test_low_temperatures_are_greedy(sampler: NativeSampler, temperature: float) -> None:
    logits = random_logits(3, 5000, 30.0)
    rows = [Row(request(i, temperature=temperature, **params), 0, i % 3) for i, params in enumerate(FILTERS)]
    assert chosen(sampler, logits, rows) == [int(logits[i % 3].argmax()) for i in range(len(rows))]


def test_adjusted_rows_and_reports_are_the_references(sampler: NativeSampler) -> None:
    logits = random_logits(3, 400, 2.0)
    before = logits.clone()
    rows = [
        Row(request(1, temperature=0.0, logit_bias={7: 100.0}), 0, 0),
        Row(request(2, logit_bias={9: 100.0}, logprobs=3), 0, 0),
        Row(request(3, repetition_penalty=1.5, logprobs=2), 1, 1),
        Row(request(4, temperature=0.0, logprobs=1), 0, 2),
        Row(request(5, min_tokens=1, stop_token_ids=(3,), top_p=0.8), 0, 2),
    ]
    mine, reference = sampler.sample(logits, rows, logits.argmax(-1).tolist()), sample(logits, rows)
    assert mine == reference
    assert mine.token_ids[:2] == [7, 9]
    assert torch.equal(before, logits)


def test_a_row_does_not_depend_on_its_neighbours(sampler: NativeSampler) -> None:
    logits = random_logits(16, 3001, 1.5)
    rows = [Row(request(i, **FILTERS[i % len(FILTERS)]), 0, i) for i in range(16)]
    together = chosen(sampler, logits, rows)
    assert together == [chosen(sampler, logits, [row])[0] for row in rows]
    assert together[::-1] == chosen(sampler, logits, rows[::-1])


def test_senseless_logits_still_give_a_token(sampler: NativeSampler) -> None:
    for value in (math.nan, math.inf, -math.inf):
        logits = torch.full((1, 333), value)
        for params in FILTERS:
            assert 0 <= chosen(sampler, logits, [Row(request(1, **params), 0, 0)])[0] < 333


def test_many_seeds_agree_on_a_real_vocabulary(sampler: NativeSampler) -> None:
    logits = random_logits(1, 49152, 2.5)
    made = [request(seed, **params) for seed in range(6) for params in FILTERS]
    found = chosen(sampler, logits, [Row(r, 0, 0) for r in made])
    assert all(is_same(logits[0], r, token) for r, token in zip(made, found, strict=True))
    assert np.all(np.array(found) < 49152)
