"""All passes on every family: the reference's numbers, just the operators one expects, and read back whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.fx import GraphModule

from tandem.compiler.export import export_network, graph_of
from tandem.compiler.network import Network
from tandem.compiler.passes.graph import aten, calls
from tandem.compiler.passes.match import match_decoder
from tandem.compiler.passes.pipeline import PASSES, fuse, kernels_by_layer
from tandem.engine.models.decoder import Decoder
from tandem.engine.models.spec import ModelSpec
from tests.compiler.passes.networks import (
    LIMITS,
    LLAMA,
    SPECS,
    STEPS,
    Precision,
    RandomCheckpoint,
    caches_of,
    make_network,
    make_step,
    reference_logits,
)

NORM = ["add_rms_norm", "linear"]
FLOAT_LAYER = [*NORM, "rope_write", "attention", "linear", *NORM, "gate", "linear"]
INT8 = Precision("int8", 0, "int8_token")
PRECISIONS = [INT8, Precision("int4", 32, "int8_group", symmetric=False), Precision("int8", 32, "float")]


def graph_for(network: Network, dtype: torch.dtype = torch.float32) -> GraphModule:
    return graph_of(export_network(network, LIMITS, caches_of(network.spec, network, dtype)))


def short(names: list[str]) -> list[str]:
    return [name.split(".")[1] for name in names]


@pytest.mark.parametrize("family", sorted(SPECS))
def test_every_family_stays_the_reference(family: str) -> None:
    spec = SPECS[family]
    network = make_network(spec)
    graph = graph_for(network)
    counts = dict(fuse(graph))
    decoder = Decoder(spec, network.groups, RandomCheckpoint(spec), torch.float32)
    ours, theirs = caches_of(spec, network).allocate(), caches_of(spec, network).allocate()
    for queries, contexts, rows in STEPS:
        step = make_step(network, queries, contexts, rows)
        assert (graph(*step, ours) - reference_logits(decoder, step, theirs)).abs().max() < 1e-4
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(ours, theirs, strict=True))
    layers = spec.num_layers
    assert counts["residual add + RMSNorm"] == 2 * layers
    assert counts["q, k, v in one product"] == counts["gate/up + activation"] == counts["RoPE + KV write"] == layers
    assert counts["last-row gather before the LM head"] == 1


@pytest.mark.parametrize("family", sorted(SPECS))
def test_a_layer_is_nine_operators(family: str) -> None:
    graph = graph_for(make_network(SPECS[family]))
    before = kernels_by_layer(graph)
    fuse(graph)
    after = kernels_by_layer(graph)
    last = SPECS[family].num_layers - 1
    assert list(after) == ["embedding", *(f"layers.{i}" for i in range(last + 1)), "head"]
    assert short(after["layers.0"]) == ["rms_norm", *FLOAT_LAYER[1:]]
    assert all(short(after[f"layers.{i}"]) == FLOAT_LAYER for i in range(1, last + 1))
    assert all(len(before[name]) > 3 * len(after[name]) for name in after if name.startswith("layers"))


@pytest.mark.parametrize("precision", PRECISIONS, ids=str)
@pytest.mark.parametrize("family", ["llama, untied", "qwen2", "gemma3"])
def test_quantised_networks_stay_the_same(family: str, precision: Precision) -> None:
    network = make_network(SPECS[family], precision)
    graph = graph_for(network)
    fuse(graph)
    step, caches = make_step(network, *STEPS[0]), caches_of(SPECS[family], network)
    assert (graph(*step, caches.allocate()) - network(*step, caches.allocate())).abs().max() < 1e-4
    left = kernels_by_layer(graph)
    assert not any("dequantize" in name or name == "aten.linear" for names in left.values() for name in names)


def test_a_layer_in_int8() -> None:
    graph = graph_for(make_network(LLAMA, INT8))
    assert dict(fuse(graph))["quantise behind norms and gates"] == 3 * LLAMA.num_layers + 1
    norm, gated = ["add_rms_norm_quantized", "int8_linear"], ["gate_quantized", "int8_linear"]
    attention = ["rope_write", "attention", "quantized_linear"]
    assert short(kernels_by_layer(graph)["layers.1"]) == [*norm, *attention, *norm, *gated]


def test_bfloat16_keeps_every_rounding() -> None:
    network = make_network(SPECS["qwen3"], dtype=torch.bfloat16)
    graph, caches = graph_for(network, torch.bfloat16), caches_of(SPECS["qwen3"], network, torch.bfloat16)
    fuse(graph)
    step = make_step(network, *STEPS[0])
    assert (graph(*step, caches.allocate()) - network(*step, caches.allocate())).abs().max() < 2e-2


def test_names_of_joined_weights_and_nothing_left_of_the_old() -> None:
    graph = graph_for(make_network(SPECS["qwen2"]))
    fuse(graph)
    of_layer = {name.removeprefix("layers.1.") for name, _ in graph.named_buffers() if name.startswith("layers.1.")}
    assert of_layer == {"qkv", "qkv_bias", "o", "gate_up", "down", "input_norm", "mlp_norm"}
    others = {name for name, _ in graph.named_buffers() if not name.startswith("layers.")}
    assert others == {"embedding", "final_norm", "rope.frequencies_folded"}


def test_passes_find_nothing_the_second_time() -> None:
    graph = graph_for(make_network(SPECS["gemma3"]))
    fuse(graph)
    assert {name: run(graph) for name, run in PASSES.items()} == dict.fromkeys(PASSES, 0)


@pytest.mark.parametrize("precision", [None, *PRECISIONS], ids=str)
@pytest.mark.parametrize("family", sorted(SPECS))
def test_the_stack_is_read_back(family: str, precision: Precision | None) -> None:
    spec = SPECS[family]
    network = make_network(spec, precision)
    graph = graph_for(network)
    fuse(graph)
    decoder, reason = match_decoder(graph)
    assert decoder is not None, reason
    assert len(decoder.layers) == spec.num_layers
    assert (decoder.head.name == decoder.embedding.name) == spec.tie_embeddings
    assert (decoder.eps, decoder.logit_soft_cap) == (spec.rms_norm_eps, spec.logit_soft_cap)
    assert decoder.embedding_scale == pytest.approx(spec.embedding_scale)
    for index, layer in enumerate(decoder.layers):
        check_layer(spec, network, index, layer)
        assert layer.qkv.kind == (None if precision is None else precision.kind)
        assert layer.down.activations == ("float" if precision is None else precision.activations)


def check_layer(spec: ModelSpec, network: Network, index: int, layer: Any) -> None:
    at = f"layers.{index}."
    assert (layer.qkv.name, layer.o.name) == (f"{at}qkv", f"{at}o")
    assert (layer.gate_up.name, layer.down.name) == (f"{at}gate_up", f"{at}down")
    assert (layer.input_norm, layer.mlp_norm) == (f"{at}input_norm", f"{at}mlp_norm")
    assert layer.q_norm == (f"{at}q_norm" if spec.qk_norm else None)
    assert layer.post_attention_norm == (f"{at}post_attention_norm" if spec.post_norms else None)
    assert layer.post_mlp_norm == (f"{at}post_mlp_norm" if spec.post_norms else None)
    assert layer.qkv_bias == (f"{at}qkv_bias" if spec.qkv_bias else None)
    assert (layer.num_heads, layer.num_kv_heads) == (spec.num_heads, spec.num_kv_heads)
    assert (layer.window, layer.soft_cap) == (spec.window(index), spec.attention_soft_cap)
    assert layer.activation == spec.activation
    is_local = spec.local_rope_theta is not None and spec.window(index) is not None
    assert layer.rope == ("rope_local" if is_local else "rope") + ".frequencies_folded"
    group = network.groups[layer.group]
    assert group.layers[layer.cache] == index


def scale_logits(graph: GraphModule) -> None:
    output = next(n for n in graph.graph.nodes if n.op == "output")
    with graph.graph.inserting_before(output):
        doubled = graph.graph.call_function(aten.exp.default, (output.args[0][0],))
    output.args = ((doubled,),)


def swap_caches(graph: GraphModule) -> None:
    attention = calls(graph.graph, torch.ops.tandem.attention.default)[0]
    caches = [n for n in graph.graph.nodes if n.name.startswith("caches_")]
    attention.replace_input_with(attention.args[1], caches[1])  # type: ignore[arg-type]


def skip_the_residual(graph: GraphModule) -> None:
    norm = calls(graph.graph, torch.ops.tandem.add_rms_norm.default)[1]
    embedded = calls(graph.graph, aten.embedding.default)[0]
    norm.replace_input_with(norm.args[0], embedded)  # type: ignore[arg-type]


def write_more(graph: GraphModule) -> None:
    attention = calls(graph.graph, torch.ops.tandem.attention.default)[0]
    slots = next(n for n in graph.graph.nodes if n.name == "slot_mapping_0")
    with graph.graph.inserting_after(attention):
        args = (attention, attention, slots, attention.args[1])
        graph.graph.call_function(torch.ops.tandem.write_kv.default, args)


def other_epsilon(graph: GraphModule) -> None:
    norm = calls(graph.graph, torch.ops.tandem.add_rms_norm.default)[0]
    norm.args = (*norm.args[:3], 0.5, norm.args[4])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (scale_logits, "LM head"),
        (swap_caches, "writes one cache and reads another"),
        (skip_the_residual, "residual stream"),
        (write_more, "no part of the stack"),
        (other_epsilon, "epsilon"),
    ],
)
def test_another_network_is_not_taken_for_a_stack(change: Callable[[GraphModule], None], reason: str) -> None:
    graph = graph_for(make_network(LLAMA))
    fuse(graph)
    change(graph)
    decoder, why = match_decoder(graph)
    assert decoder is None
    assert reason in why


def test_an_unfused_network_is_no_stack() -> None:
    decoder, reason = match_decoder(graph_for(make_network(replace(LLAMA, num_layers=1))))
    assert decoder is None
    assert "index_select" in reason
