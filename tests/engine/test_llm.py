"""Offline generation with the real default model, and that its greedy text is transformers'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tandem import LLM, SamplingParams
from tandem.core.errors import ConfigError, InvalidRequest, MemoryTooSmall, ModelNotFound

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n",
    "Water boils at",
    "The three primary colours are",
    "Dear Sir or Madam,\n\nI am writing to",
    "1, 1, 2, 3, 5, 8,",
    "In the year 1969,",
    "A good way to learn a new language is",
    "Photosynthesis is the process by which",
]
NUM_TOKENS = 64


@pytest.fixture(scope="module", params=["paged", "compiled"])
def llm(request: pytest.FixtureRequest, smollm2: Path) -> LLM:
    """Every test runs against both engines."""
    model = smollm2 if request.param == "paged" else request.getfixturevalue("smollm2_engine")
    return LLM(str(model), dtype="float32", kv_memory_gib=1.0, max_num_seqs=16)


@pytest.fixture(scope="module")
def reference(smollm2: Path) -> Any:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(str(smollm2.parent), gguf_file=smollm2.name, dtype=torch.float32)
    return model.eval()


def greedy(**changes: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "max_tokens": 12, "ignore_eos": True} | changes)


def transformers_tokens(model: Any, prompts: list[list[int]], **options: Any) -> list[list[int]]:
    """Greedy continuations, all prompts in one left-padded batch."""
    longest = max(len(p) for p in prompts)
    ids = torch.tensor([[2] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    plain = {"do_sample": False, "eos_token_id": None, "pad_token_id": 2}
    output = model.generate(ids, attention_mask=mask, **plain | options)
    return [row[longest:].tolist() for row in output]


def test_greedy_text_is_transformers(llm: LLM, reference: Any) -> None:
    outputs = llm.generate(PROMPTS, greedy(max_tokens=NUM_TOKENS), use_tqdm=False)
    wanted = transformers_tokens(reference, [o.prompt_token_ids for o in outputs], max_new_tokens=NUM_TOKENS)
    for prompt, output, expected in zip(PROMPTS, outputs, wanted, strict=True):
        assert output.prompt == prompt, "answers come in the order of the prompts"
        assert output.outputs[0].token_ids == expected
        assert output.outputs[0].finish_reason == "length"


def test_repetition_penalty_is_transformers(llm: LLM, reference: Any) -> None:
    """Bug case smp-03, end to end."""
    (output,) = llm.generate("Paris Paris Paris", greedy(max_tokens=20, repetition_penalty=1.3), use_tqdm=False)
    (wanted,) = transformers_tokens(reference, [output.prompt_token_ids], max_new_tokens=20, repetition_penalty=1.3)
    assert output.outputs[0].token_ids == wanted


def test_prompt_logprobs_are_the_models(llm: LLM, reference: Any) -> None:
    (output,) = llm.generate(PROMPTS[1], greedy(max_tokens=0, prompt_logprobs=2), use_tqdm=False)
    ids = output.prompt_token_ids
    with torch.inference_mode():
        expected = reference(torch.tensor([ids])).logits[0].float().log_softmax(-1)
    assert output.outputs[0].token_ids == []
    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs) == len(ids)
    assert output.prompt_logprobs[0] is None
    for position, entry in enumerate(output.prompt_logprobs[1:], 1):
        assert entry is not None
        assert entry.token_id == ids[position]
        assert entry.logprob == pytest.approx(float(expected[position - 1, ids[position]]), abs=1e-3)
        assert entry.top[0][0] == int(expected[position - 1].argmax())


def test_cold_and_warm_runs_agree_also_after_a_stop(llm: LLM) -> None:
    """Bug case pc-03."""
    prompt = (
        "The quick brown fox jumps over the lazy dog, and then it runs away into the deep dark forest where few live"
    )
    wanted = greedy(logprobs=3)
    (cold,) = llm.generate(prompt, wanted, use_tqdm=False)
    (warm,) = llm.generate(prompt, wanted, use_tqdm=False)
    assert (cold.num_cached_tokens, warm.num_cached_tokens) == (0, len(cold.prompt_token_ids) // 16 * 16)
    piece = llm.tokenizer.decode(cold.outputs[0].token_ids[3:5])
    (stopped,) = llm.generate(prompt, greedy(stop=(piece,)), use_tqdm=False)
    assert cold.outputs[0].text.startswith(stopped.outputs[0].text)
    (again,) = llm.generate(prompt, wanted, use_tqdm=False)
    for other in (warm, again):
        _same(cold.outputs[0], other.outputs[0])
    longer = prompt + cold.outputs[0].text + " and"
    (extended,) = llm.generate(longer, wanted, use_tqdm=False)
    llm.reset_prefix_cache()
    (fresh,) = llm.generate(longer, wanted, use_tqdm=False)
    assert fresh.num_cached_tokens == 0 < extended.num_cached_tokens
    _same(fresh.outputs[0], extended.outputs[0])


def _same(one: Any, other: Any) -> None:
    assert one.token_ids == other.token_ids
    for a, b in zip(one.logprobs, other.logprobs, strict=True):
        assert a.logprob == pytest.approx(b.logprob, abs=1e-4)


def test_a_stop_string_ends_at_its_token_and_wastes_nothing(llm: LLM) -> None:
    """Bug case stop-01."""
    (plain,) = llm.generate(PROMPTS[6], greedy(max_tokens=20), use_tqdm=False)
    text = plain.outputs[0].text
    stop = text[4:9]
    (output,) = llm.generate(PROMPTS[6], greedy(max_tokens=20, stop=(stop,)), use_tqdm=False)
    answer = output.outputs[0]
    assert answer.text == text[: text.index(stop)]
    assert (answer.finish_reason, answer.stop_reason) == ("stop", stop)
    assert stop in llm.tokenizer.decode(answer.token_ids)
    assert stop not in llm.tokenizer.decode(answer.token_ids[:-1])
    assert llm.stats.num_wasted_tokens == 0


def test_seeds_reproduce_alone_and_in_a_batch(llm: LLM) -> None:
    params = SamplingParams(temperature=0.9, top_p=0.95, seed=11, max_tokens=16, ignore_eos=True)
    (alone,) = llm.generate(PROMPTS[0], params, use_tqdm=False)
    batch = llm.generate(PROMPTS[:6], params, use_tqdm=False)
    assert batch[0].outputs[0].token_ids == alone.outputs[0].token_ids
    other = SamplingParams(temperature=0.9, top_p=0.95, seed=12, max_tokens=16, ignore_eos=True)
    assert llm.generate(PROMPTS[0], other, use_tqdm=False)[0].outputs[0].token_ids != alone.outputs[0].token_ids


def test_n_answers_differ_and_the_first_is_that_of_n_1(llm: LLM) -> None:
    params: dict[str, Any] = {"temperature": 1.0, "seed": 3, "max_tokens": 12, "ignore_eos": True}
    (three,) = llm.generate(PROMPTS[2], SamplingParams(n=3, **params), use_tqdm=False)
    (one,) = llm.generate(PROMPTS[2], SamplingParams(**params), use_tqdm=False)
    texts = [answer.text for answer in three.outputs]
    assert [answer.index for answer in three.outputs] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert texts[0] == one.outputs[0].text


def test_chat_uses_the_models_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    (output,) = llm.chat(messages, SamplingParams(temperature=0.0, max_tokens=20), use_tqdm=False)
    assert "Paris" in output.outputs[0].text
    assert output.outputs[0].finish_reason == "stop"
    assert "".join(llm.stream_chat(messages, SamplingParams(temperature=0.0, max_tokens=20))) == output.outputs[0].text


def test_a_second_call_is_not_offset_by_the_first(llm: LLM) -> None:
    """Bug case sch-03, in process."""
    first = llm.generate(PROMPTS[:4], greedy(), use_tqdm=False)
    second = llm.generate(PROMPTS[4:8], greedy(), use_tqdm=False)
    assert [o.prompt for o in first + second] == PROMPTS[:8]
    assert len({o.request_id for o in first + second}) == 8


@pytest.mark.parametrize(
    ("prompt", "said"),
    [([], "no tokens"), ([-1], "-1"), ([49152], "49152"), ([5] * 9000, "context of this model holds 8192")],
)
def test_impossible_prompts_are_refused_before_anything_runs(llm: LLM, prompt: list[int], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        llm.generate([[1, 2, 3], prompt], greedy(), use_tqdm=False)
    assert llm.generate([[1, 2, 3]], greedy(), use_tqdm=False)[0].outputs[0].finish_reason == "length"


def test_impossible_settings_are_refused(smollm2: Path) -> None:
    with pytest.raises(ConfigError, match="no_such_option"):
        LLM(str(smollm2), no_such_option=1)
    with pytest.raises(MemoryTooSmall, match="would fit"):
        LLM(str(smollm2), num_blocks=4, max_model_len=8192)
    with pytest.raises(ModelNotFound, match="smollm2-135m"):
        LLM("smollm2-153m")


@pytest.mark.parametrize("prompts", [None, 5, [None], [["a"]], [{"text": "a"}]])
def test_what_is_no_prompt_is_refused(llm: LLM, prompts: Any) -> None:
    with pytest.raises(InvalidRequest, match="prompt"):
        llm.generate(prompts, greedy(), use_tqdm=False)


def test_vllms_forms_of_a_prompt_are_taken(llm: LLM) -> None:
    plain = llm.generate("Paris is", greedy(max_tokens=3), use_tqdm=False)[0].outputs[0].token_ids
    ids = llm.tokenizer.encode("Paris is")
    forms: list[Any] = [{"prompt": "Paris is"}, [{"prompt_token_ids": ids}], ids, [ids]]
    for form in forms:
        assert llm.generate(form, greedy(max_tokens=3), use_tqdm=False)[0].outputs[0].token_ids == plain
    with pytest.raises(InvalidRequest, match="sampling_params"):
        llm.generate("a", 5, use_tqdm=False)  # type: ignore[arg-type]
