"""The exported form of the network against `models/decoder.py`, which it spells out."""

from __future__ import annotations

import pytest
import torch

from tandem.engine.models.decoder import Decoder
from tests.compiler.passes.networks import (
    LLAMA,
    SPECS,
    STEPS,
    DequantizedCheckpoint,
    Precision,
    RandomCheckpoint,
    caches_of,
    make_network,
    make_step,
    reference_logits,
)


@pytest.mark.parametrize("family", sorted(SPECS))
def test_every_family_is_the_reference(family: str) -> None:
    spec = SPECS[family]
    network = make_network(spec)
    decoder = Decoder(spec, network.groups, RandomCheckpoint(spec), torch.float32)
    ours, theirs = caches_of(spec, network).allocate(), caches_of(spec, network).allocate()
    for queries, contexts, rows in STEPS:
        step = make_step(network, queries, contexts, rows)
        got = network(*step, ours)
        assert got.shape == (len(rows), spec.vocab_size)
        assert (got - reference_logits(decoder, step, theirs)).abs().max() < 1e-4
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("kind", ["int8", "int4", "fp8"])
def test_quantised_weights_are_what_they_stand_for(kind: str) -> None:
    precision = Precision(kind, 0 if kind == "fp8" else 32, "float", symmetric=kind != "int4")  # type: ignore[arg-type]
    network = make_network(LLAMA, precision)
    decoder = Decoder(LLAMA, network.groups, DequantizedCheckpoint(LLAMA, precision), torch.float32)
    step = make_step(network, *STEPS[0])
    got = network(*step, caches_of(LLAMA, network).allocate())
    assert (got - reference_logits(decoder, step, caches_of(LLAMA, network).allocate())).abs().max() < 1e-4


def test_activations_have_the_weights_type_and_logits_are_float32() -> None:
    network = make_network(SPECS["gemma3"], dtype=torch.bfloat16)
    caches = caches_of(SPECS["gemma3"], network, torch.bfloat16).allocate()
    assert network(*make_step(network, *STEPS[0]), caches).dtype == torch.float32
    assert {b.dtype for n, b in network.named_buffers() if "norm" in n} == {torch.float32}
    assert network.embedding.dtype == torch.bfloat16


def test_a_tied_head_is_no_second_weight() -> None:
    assert not any(name.startswith("head") for name, _ in make_network(LLAMA).named_buffers())
    assert any(name == "head" for name, _ in make_network(SPECS["llama, untied"]).named_buffers())
