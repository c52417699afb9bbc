"""Argmax and draws against torch and `engine/sampling/draw.py`, and the sampler against its plain twin."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tandem.core.request import Rank, Request
from tandem.core.sampling_params import SamplingParams
from tandem.engine.kernels.triton import sampler
from tandem.engine.kernels.triton.sampling import CANDIDATES, PIECE, DrawParams, argmax, draw, draw_likely
from tandem.engine.sampling import sampler as plain
from tandem.engine.sampling.draw import draw as draw_on_host
from tandem.engine.sampling.sampler import Row

WIDE = [{"top_k": 3000}, {"min_p": 1e-7}, {"top_p": 0.99, "temperature": 10.0}]
WIDE += [{"top_k": 2000, "top_p": 0.3, "temperature": 1.5}]
SIZES = [5, 700, CANDIDATES + 1, 2 * PIECE + 33]


def random_logits(rows: int, vocab: int, device: torch.device) -> Tensor:
    return (torch.randn(rows, vocab, generator=torch.Generator().manual_seed(vocab)) * 3).to(device)


def params_for(rows: int, device: torch.device, seed: int = 0, **wanted: float) -> tuple[DrawParams, list[float]]:
    uniforms = torch.rand(rows, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    uniforms[0], uniforms[1] = 0.0, 0.9999

    def column(name: str, default: float, dtype: torch.dtype) -> Tensor:
        return torch.full((rows,), wanted.get(name, default), dtype=dtype, device=device)

    made = DrawParams(
        column("temperature", 1.0, torch.float32),
        column("top_k", 0, torch.int32),
        column("top_p", 1.0, torch.float64),
        column("min_p", 0.0, torch.float32),
        uniforms.to(device),
    )
    return made, uniforms.tolist()


@pytest.mark.parametrize("vocab", SIZES)
def test_argmax(vocab: int, device: torch.device) -> None:
    logits = random_logits(4, vocab, device)
    logits[1, vocab // 2] = logits[1, -1] = logits[1].max() + 1  # of equal ones, the lower id
    logits[2] = float("-inf")
    logits[2, -1] = -1e30
    expected = [int(logits[0].argmax()), vocab // 2, vocab - 1, int(logits[3].argmax())]
    found = argmax(logits)
    assert found.token.tolist() == expected
    assert torch.equal(found.logit, logits.max(1).values)


def test_argmax_of_nan_is_still_a_token(device: torch.device) -> None:
    assert 0 <= argmax(torch.full((1, 5000), float("nan"), device=device)).token.item() < 5000


@pytest.mark.parametrize("vocab", SIZES)
@pytest.mark.parametrize("temperature", [1.0, 0.3, 1e-4, 50.0])
def test_draws_from_everything(vocab: int, temperature: float, device: torch.device) -> None:
    logits = random_logits(8, vocab, device)
    logits[3, : vocab - 2] = float("-inf")
    params, uniforms = params_for(8, device, temperature=temperature)
    wanted = SamplingParams(temperature=temperature)
    expected = [draw_on_host(row.cpu().numpy(), wanted, u) for row, u in zip(logits, uniforms, strict=True)]
    assert draw(logits, params).tolist() == expected


@pytest.mark.parametrize("vocab", SIZES)
@pytest.mark.parametrize(
    "wanted",
    [
        {"top_k": 1},
        {"top_k": 40},
        {"top_k": 3000},
        {"top_p": 0.5},
        {"top_p": 0.9},
        {"top_p": 1e-6},
        {"min_p": 0.05},
        {"min_p": 1.0},
        {"min_p": 1e-7},
        {"top_k": 30, "top_p": 0.8, "min_p": 0.01, "temperature": 0.7},
        {"top_k": 2000, "top_p": 0.3, "temperature": 1.5},
        {"top_p": 0.99, "temperature": 10.0},
    ],
)
def test_draws_from_the_likely_set(vocab: int, wanted: dict[str, Any], device: torch.device) -> None:
    """The same token, or none where the set may be larger than the candidates."""
    logits = random_logits(6, vocab, device)
    params, uniforms = params_for(6, device, **wanted)
    expected = [
        draw_on_host(row.cpu().numpy(), SamplingParams(**wanted), u) for row, u in zip(logits, uniforms, strict=True)
    ]
    got = draw_likely(logits, params).tolist()
    may_be_wide = vocab > CANDIDATES and wanted in WIDE
    assert all(g == e or (may_be_wide and g == -1) for g, e in zip(got, expected, strict=True))
    if vocab > 2 * CANDIDATES:
        assert (-1 in got) == may_be_wide


def test_the_sampler_gives_what_its_plain_twin_gives(device: torch.device) -> None:
    settings: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.0, "logprobs": 3},
        {"temperature": 1.0},
        {"temperature": 0.8, "top_p": 0.9, "logprobs": 0},
        {"temperature": 20.0, "top_p": 0.999},
        {"temperature": 0.0, "logit_bias": {7: 100.0}},
        {"temperature": 1.0, "top_k": 5, "presence_penalty": 1.5, "repetition_penalty": 1.3},
        {"temperature": 0.0, "min_tokens": 3},
    ]
    logits = random_logits(len(settings), 3000, device)
    rows = []
    for index, wanted in enumerate(settings):
        made = Request("r", [1, 2], SamplingParams(**{"seed": index} | wanted), Rank(0, 0.0, 0))
        made.token_ids += [3, 4][: index % 3]
        made.eos_token_ids = frozenset({int(logits[index].argmax())})
        rows.append(Row(made, index % 2, index))
    rows.append(rows[2]._replace(answer=5))
    before = logits.clone()
    expected = plain.sample(logits.cpu(), rows)
    got = sampler.sample(logits, rows)
    assert torch.equal(before, logits)
    assert got.token_ids == expected.token_ids
    assert got.logprobs is not None
    assert expected.logprobs is not None
    for mine, theirs in zip(got.logprobs, expected.logprobs, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None and theirs is not None:
            assert mine.token_id == theirs.token_id
            assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-4)
    only_plain = sampler.sample(logits, rows[:1], argmax(logits).token)
    assert only_plain.token_ids == expected.token_ids[:1]
    assert only_plain.logprobs is None
