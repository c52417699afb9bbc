"""The whole decoder beside transformers, in float32: each family, however its tokens are batched."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tandem.engine.kernels.cpu.native import Kernels

TOLERANCE = 1e-4


def worst(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max())


def test_prefill_in_one_piece_in_chunks_and_step_by_step(kernels: Kernels, model: Any, paged: Any, tokens: Any) -> None:
    prompt = tokens(150)
    expected = model.logits(prompt)
    run = paged(model.decoder(kernels))
    whole = run.step([(run.sequence(), prompt)])[0]
    assert worst(whole, expected) < TOLERANCE

    sequence = run.sequence()
    pieces = [run.step([(sequence, prompt[a:b])])[0] for a, b in ((0, 7), (7, 90), (90, 120))]
    pieces += [run.step([(sequence, [t])])[0] for t in prompt[120:]]
    assert worst(torch.cat(pieces), expected) < TOLERANCE
    assert torch.equal(torch.cat(pieces), whole), "a row's bits must not depend on the chunks it came in"


def test_prefills_and_decodes_in_one_batch(kernels: Kernels, model: Any, paged: Any, tokens: Any) -> None:
    prompts = [tokens(n, seed=n) for n in (33, 5, 80, 64, 17)]
    run = paged(model.decoder(kernels, block_size=8))
    sequences = [run.sequence() for _ in prompts]
    run.step([(sequences[0], prompts[0][:-1]), (sequences[1], prompts[1][:-1])])
    run.step([(sequences[2], prompts[2][:50])])
    last = [prompts[0][-1:], prompts[1][-1:], prompts[2][50:], prompts[3], prompts[4]]
    for logits, prompt in zip(run.step(list(zip(sequences, last, strict=True))), prompts, strict=True):
        assert worst(logits, model.logits(prompt)[-len(logits) :]) < TOLERANCE


def test_every_instruction_set(kernels: Kernels, variant: str, model: Any, paged: Any, tokens: Any) -> None:
    prompt = tokens(40)
    run = paged(model.decoder(kernels, variant=variant))
    sequence = run.sequence()
    logits = torch.cat([run.step([(sequence, prompt[:37])])[0], *(run.step([(sequence, [t])])[0] for t in prompt[37:])])
    assert worst(logits, model.logits(prompt)) < TOLERANCE


@pytest.mark.parametrize("weights", ["float32", "bfloat16"])
@pytest.mark.parametrize("kv", ["float32", "bfloat16", "int8"])
def test_reduced_types_stay_near(
    kernels: Kernels, variant: str, gemma3: Any, paged: Any, tokens: Any, weights: str, kv: str
) -> None:
    prompt = tokens(60)
    expected = gemma3.logits(prompt)
    run = paged(gemma3.decoder(kernels, variant=variant, weight_dtype=weights, kv_dtype=kv))
    sequence = run.sequence()
    logits = torch.cat([run.step([(sequence, prompt[:50])])[0], *(run.step([(sequence, [t])])[0] for t in prompt[50:])])
    error = (logits - expected).norm() / expected.norm()
    assert error < (1e-5 if weights == kv == "float32" else 0.05)


def test_blocks_behind_the_window_are_not_read(kernels: Kernels, gemma3: Any, paged: Any, tokens: Any) -> None:
    prompt = tokens(100)
    run = paged(gemma3.decoder(kernels, block_size=4))
    sequence = run.sequence()
    run.step([(sequence, prompt[:90])])
    for table, group in zip(sequence.tables, run.decoder.groups, strict=True):
        if group.window is not None:
            gone = (90 + 1 - group.window) // 4
            table[:gone] = [-1] * gone
    logits = torch.cat([run.step([(sequence, [t])])[0] for t in prompt[90:]])
    assert worst(logits, gemma3.logits(prompt)[90:]) < TOLERANCE


def test_copied_block_serves_like_its_source(kernels: Kernels, llama: Any, paged: Any, tokens: Any) -> None:
    prompt = tokens(24)
    run = paged(llama.decoder(kernels))
    sequence = run.sequence()
    run.step([(sequence, prompt[:20])])
    copy = run.free.pop()
    run.decoder.copy_block(sequence.tables[0][1], copy)
    sequence.tables[0][1] = copy
    assert worst(run.step([(sequence, prompt[20:])])[0], llama.logits(prompt)[20:]) < TOLERANCE


def test_hidden_states_are_those_behind_the_last_norm(kernels: Kernels, model: Any, paged: Any, tokens: Any) -> None:
    prompt = tokens(9)
    run = paged(model.decoder(kernels))
    run.step([(run.sequence(), prompt)])
    hidden = torch.empty(9, model.spec.hidden_size)
    run.decoder.step(*run.last_arguments, argmax_out=torch.empty(9, dtype=torch.int32), hidden_out=hidden)
    with torch.no_grad():
        expected = model.reference.model(torch.tensor([prompt])).last_hidden_state[0]
    assert worst(hidden, expected) < TOLERANCE


def test_what_cant_be_is_refused(kernels: Kernels, llama: Any, paged: Any, tokens: Any) -> None:
    run = paged(llama.decoder(kernels, num_blocks=4))
    run.step([(run.sequence(), tokens(8))])
    ids, positions, starts, contexts, tables, slots, rows = run.last_arguments
    out = torch.empty(8, dtype=torch.int32)
    with pytest.raises(AssertionError, match="vocabulary"):
        run.decoder.step(ids + 1000, positions, starts, contexts, tables, slots, rows, argmax_out=out)
    with pytest.raises(AssertionError, match="block table names"):
        run.decoder.step(ids, positions, starts, contexts, [tables[0] + 4], slots, rows, argmax_out=out)
    with pytest.raises(AssertionError, match="outside the pool"):
        run.decoder.step(ids, positions, starts, contexts, tables, [slots[0] + 64], rows, argmax_out=out)
