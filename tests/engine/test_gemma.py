"""Gemma 3 270M as it is published: K-quants, SentencePiece, windows. Skipped where it has not been pulled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tandem import LLM, SamplingParams

PROMPTS = ["The capital of France is", "Once upon a time", "def add(a, b):\n", "1, 1, 2, 3, 5, 8,", "Der Himmel ist"]


@pytest.fixture(scope="module")
def llm(gemma3: Path) -> LLM:
    return LLM(str(gemma3), dtype="float32", kv_memory_gib=0.75, max_num_seqs=8)


def test_greedy_text_is_transformers(llm: LLM, gemma3: Path) -> None:
    from transformers import AutoModelForCausalLM

    outputs = llm.generate(PROMPTS, SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True), use_tqdm=False)
    model: Any = AutoModelForCausalLM.from_pretrained(str(gemma3.parent), gguf_file=gemma3.name, dtype=torch.float32)
    for output in outputs:
        ids = torch.tensor([output.prompt_token_ids])
        wanted = model.generate(ids, max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=0)
        assert output.outputs[0].token_ids == wanted[0, ids.shape[1] :].tolist()


def test_windows_release_memory_in_a_long_conversation(llm: LLM) -> None:
    """4,000 tokens: five of six layer groups keep their last 512 only."""
    prompt = llm.tokenizer.encode("The sea was calm that morning, and the old man rowed out alone. " * 300)[:4000]
    llm.reset_prefix_cache()
    tokens = llm.stream_tokens(prompt, SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True))
    held = [llm.stats.num_held_blocks for _ in tokens][:-1]  # The last one has given everything back.
    num_groups = 6
    all_layers_keep_all = num_groups * 4000 // 16
    assert max(held) < 0.3 * all_layers_keep_all
    assert min(held) >= 4000 // 16
