"""Logits against transformers on tiny random models in float32: in one piece, in chunks, step by step, mixed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.engine.models.tiny import VOCAB, PagedModel, chunked, llama_config, save_random
from tests.engine.models.tiny_families import CONFIGS


@pytest.fixture(scope="module", params=sorted(CONFIGS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("model")
    return save_random(CONFIGS[request.param](), folder), folder


def reference_logits(model: Any, tokens: list[int]) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([tokens])).logits[0].float()
    return logits


def random_tokens(count: int, seed: int) -> list[int]:
    return torch.randint(0, VOCAB, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize("chunk", [70, 17, 1])
def test_logits_agree_with_transformers(pair: tuple[Any, Path], chunk: int) -> None:
    model, folder = pair
    tokens = random_tokens(70, seed=1)
    paged = PagedModel(folder)
    request = paged.open(tokens)
    logits = torch.cat([paged.run([(request, count)])[0] for count in chunked(len(tokens), chunk)])
    assert (logits - reference_logits(model, tokens)).abs().max() < 1e-4


def test_prefill_and_decode_of_several_sequences_in_one_step(pair: tuple[Any, Path]) -> None:
    model, folder = pair
    paged = PagedModel(folder)
    prompts = [random_tokens(count, seed=count) for count in (40, 9, 23)]
    requests = [paged.open(tokens) for tokens in prompts]
    got: list[list[Tensor]] = [[], [], []]
    plan = [[(0, 39)], [(0, 1), (1, 5)], [(1, 1), (2, 20)], [(1, 3), (2, 3)]]
    for step in plan:
        outputs = paged.run([(requests[which], count) for which, count in step])
        for (which, _), logits in zip(step, outputs, strict=True):
            got[which].append(logits)
    for tokens, parts in zip(prompts, got, strict=True):
        assert (torch.cat(parts) - reference_logits(model, tokens)).abs().max() < 1e-4


@pytest.mark.parametrize("block_size", [1, 2, 16, 64])
def test_the_block_size_changes_nothing(tmp_path: Path, block_size: int) -> None:
    model = save_random(llama_config(), tmp_path)
    tokens = random_tokens(50, seed=5)
    paged = PagedModel(tmp_path, block_size=block_size)
    request = paged.open(tokens)
    logits = torch.cat([paged.run([(request, count)])[0] for count in chunked(len(tokens), 13)])
    assert (logits - reference_logits(model, tokens)).abs().max() < 1e-4
