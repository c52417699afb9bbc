from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from tandem.core.errors import InvalidRequest
from tandem.core.sampling_params import SamplingParams


def test_defaults_are_openais() -> None:
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p, params.max_tokens) == (1, 1.0, 1.0, 16)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0),
        ("n", 129),
        ("n", 1.5),
        ("top_k", 1 << 64),
        ("max_tokens", 1 << 64),
        ("min_tokens", 1 << 64),
        ("stop", 5),
        ("stop", (5,)),
        ("stop_token_ids", 5),
        ("logit_bias", 5),
        ("n", True),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "hot"),
        ("temperature", 1e300),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_k", -2),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("seed", 1 << 70),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -2.5),
        ("repetition_penalty", 0.0),
        ("logit_bias", {3: math.nan}),
        ("logit_bias", {3: 101.0}),
        ("logit_bias", {-3: 1.0}),
        ("logprobs", 21),
        ("prompt_logprobs", -1),
        ("stop", ("",)),
        ("stop", ("x" * 1025,)),
        ("stop", tuple(str(i) for i in range(10_000))),
        ("stop_token_ids", (-1,)),
        ("max_tokens", -1),
        ("max_tokens", 10**9 + 0.5),
        ("min_tokens", -1),
    ],
)
def test_what_can_not_be_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**{field: value})
    assert caught.value.param == field
    assert len(caught.value.message) < 300


def test_min_tokens_above_max_tokens_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="min_tokens is 9 but max_tokens is 8"):
        SamplingParams(min_tokens=9, max_tokens=8)
    assert SamplingParams(min_tokens=9, max_tokens=None).min_tokens == 9


def test_lists_and_a_single_text_are_taken_as_in_vllm() -> None:
    assert SamplingParams(stop="a").stop == ("a",)  # type: ignore[arg-type]
    assert SamplingParams(stop=["a", "b"], stop_token_ids=[3]).stop == ("a", "b")  # type: ignore[arg-type]


def test_parameters_never_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SamplingParams().n = 2  # type: ignore[misc]


@pytest.mark.parametrize(("temperature", "greedy"), [(0.0, True), (1e-7, True), (1e-4, False), (1.0, False)])
def test_tiny_temperatures_are_greedy(temperature: float, greedy: bool) -> None:
    assert SamplingParams(temperature=temperature).is_greedy is greedy
