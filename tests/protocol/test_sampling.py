"""Wire fields become sampling parameters under their own names, and errors go back under the client's."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from tandem.core.errors import InvalidRequest
from tandem.core.sampling_params import SamplingParams
from tandem.protocol import sampling
from tandem.protocol.decoding import decode_chat, decode_completion
from tandem.protocol.sampling import to_sampling_params


def of_chat(**fields: Any) -> SamplingParams:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]} | fields
    return to_sampling_params(decode_chat(json.dumps(body).encode()))


def of_completion(**fields: Any) -> SamplingParams:
    return to_sampling_params(decode_completion(json.dumps({"model": "m", "prompt": "hi"} | fields).encode()))


def test_every_parameter_is_mapped() -> None:
    mapped = {*sampling._SAME_NAME, "stop", "stop_token_ids", "logit_bias", "max_tokens", "logprobs"}
    assert {field.name for field in dataclasses.fields(SamplingParams)} == mapped


def test_defaults_are_openais() -> None:
    assert of_chat() == SamplingParams(max_tokens=None)
    assert of_completion() == SamplingParams(max_tokens=16)


def test_values_arrive() -> None:
    got = of_chat(
        n=2, temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, seed=-3, presence_penalty=1, frequency_penalty=-1,
        repetition_penalty=1.1, logit_bias={"5": 1.5, "6": -100}, stop=["a", "b"], stop_token_ids=[1],
        include_stop_str_in_output=True, min_tokens=2, ignore_eos=True, skip_special_tokens=False, prompt_logprobs=1,
        max_tokens=9, logprobs=True, top_logprobs=4,
    )  # fmt: skip
    assert got == SamplingParams(
        n=2, temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, seed=-3, presence_penalty=1, frequency_penalty=-1,
        repetition_penalty=1.1, logit_bias={5: 1.5, 6: -100}, stop=("a", "b"), stop_token_ids=(1,),
        include_stop_str_in_output=True, min_tokens=2, ignore_eos=True, skip_special_tokens=False, prompt_logprobs=1,
        max_tokens=9, logprobs=4,
    )  # fmt: skip
    assert of_chat(stop="x").stop == ("x",)


def test_the_newer_limit_wins_and_is_named_in_errors() -> None:
    assert of_chat(max_tokens=5, max_completion_tokens=7).max_tokens == 7
    with pytest.raises(InvalidRequest, match="max_completion_tokens") as caught:
        of_chat(max_completion_tokens=-1)
    assert caught.value.param == "max_completion_tokens"


def test_chat_logprobs() -> None:
    assert of_chat(logprobs=True).logprobs == 0
    assert of_chat(logprobs=True, top_logprobs=5).logprobs == 5
    assert of_chat(logprobs=False).logprobs is None
    for wrong in ({"logprobs": False, "top_logprobs": 2}, {"logprobs": True, "top_logprobs": 21}):
        with pytest.raises(InvalidRequest) as caught:
            of_chat(**wrong)
        assert caught.value.param == "top_logprobs"


def test_echoed_logprobs_need_the_prompts() -> None:
    assert of_completion(echo=True, logprobs=3).prompt_logprobs == 3
    assert of_completion(echo=True, logprobs=3, prompt_logprobs=5).prompt_logprobs == 5
    assert of_completion(echo=True).prompt_logprobs is None
    assert of_completion(max_tokens=0).max_tokens == 0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 10**30}, "n"),
        ({"seed": 1 << 64}, "seed"),
        ({"logit_bias": {"abc": 1}}, "logit_bias"),
        ({"logit_bias": {"1_0": 1}}, "logit_bias"),
        ({"logit_bias": {" 1": 1}}, "logit_bias"),
        ({"logit_bias": {"-3": 1}}, "logit_bias"),
        ({"logit_bias": {"3": 101}}, "logit_bias"),
        ({"stop_token_ids": [-3]}, "stop_token_ids"),
        ({"stop": ""}, "stop"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
    ],
)
def test_ranges(fields: dict[str, Any], param: str) -> None:
    for convert in (of_chat, of_completion):
        with pytest.raises(InvalidRequest) as caught:
            convert(**fields)
        assert caught.value.param == param
