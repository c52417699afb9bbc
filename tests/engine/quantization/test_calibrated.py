"""Calibrated recipes: the dense network is the real one, folding changes nothing, and searching gains."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tandem.engine.loading.opening import open_checkpoint
from tandem.engine.quantization.awq import apply_awq
from tandem.engine.quantization.dense import DenseNetwork, LayerTensors, mlp_norm_name, plain_products
from tandem.engine.quantization.folding import CONSUMERS, JOINTS, Joint, fold, inputs_at, shared
from tandem.engine.quantization.matrix import QuantizedMatrix
from tandem.engine.quantization.model import quantize
from tandem.engine.quantization.recipe import Recipe
from tandem.engine.quantization.rounding import round_matrix
from tandem.engine.quantization.simulate import SimulatedModel, reference_model
from tandem.engine.quantization.smoothquant import apply_smoothquant, best_factor
from tandem.engine.quantization.statistics import statistics_of
from tests.engine.models.tiny import VOCAB, PagedModel, save_random
from tests.engine.models.tiny_families import CONFIGS

FAMILIES = ("llama", "llama, one kv head", "mistral, windowed", "qwen2", "qwen3", "gemma3", "gemma3, logit soft cap")


def loud_layer(folder: Path) -> tuple[DenseNetwork, LayerTensors, Tensor]:
    """A first layer with a few loud channels, and inputs for it."""
    checkpoint = open_checkpoint(folder)
    model, at = quantize(checkpoint, Recipe(precision="fp32")), "model.layers.0."
    everything = model.vectors | {name: m for name, m in model.matrices.items() if isinstance(m, Tensor)}
    weights = {name.removeprefix(at): t.clone() for name, t in everything.items() if name.startswith(at)}
    weights["input_layernorm.weight"][::16] *= 20
    weights[mlp_norm_name(checkpoint.spec)][5::16] *= 20
    x = torch.randn(8, 32, checkpoint.spec.hidden_size, generator=torch.Generator().manual_seed(2))
    return DenseNetwork(checkpoint.spec, 32), weights, x


def run(network: DenseNetwork, weights: LayerTensors, x: Tensor) -> Tensor:
    return network.layer(0, weights, plain_products(weights), x)[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_dense_network_is_the_paged_one(tmp_path: Path, family: str) -> None:
    save_random(CONFIGS[family](), tmp_path)
    tokens = torch.randint(0, VOCAB, (40,), generator=torch.Generator().manual_seed(3))
    paged = PagedModel(tmp_path)
    wanted = paged.run([(paged.open(tokens.tolist()), 40)])[0]
    got = reference_model(open_checkpoint(tmp_path)).logits(tokens)
    torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("joint", JOINTS)
def test_folding_changes_nothing(tmp_path: Path, family: str, joint: Joint) -> None:
    save_random(CONFIGS[family](), tmp_path)
    network, weights, x = loud_layer(tmp_path)
    before = run(network, weights, x)
    size = weights[CONSUMERS[joint][0]].shape[1]
    factor = shared(torch.rand(size, generator=torch.Generator().manual_seed(4)) + 0.2, network.spec, joint)
    old = {part: weights[part] for part in CONSUMERS[joint]}
    fold(weights, network.spec, joint, factor)
    assert all(not torch.equal(weights[part], tensor) for part, tensor in old.items())
    torch.testing.assert_close(run(network, weights, x), before, atol=1e-4, rtol=1e-4)


def test_awq_beats_round_to_nearest_where_channels_are_loud(tiny_llama: Path) -> None:
    network, weights, x = loud_layer(tiny_llama)
    _, inputs = network.layer(0, weights, plain_products(weights), x)
    given, recipe = inputs_at(inputs, "qkv"), Recipe(precision="awq", group_size=64)
    before = torch.cat([weights[part] for part in CONSUMERS["qkv"]])
    plain = nearest(before)
    statistics = apply_awq(weights, network.spec, inputs, recipe)
    after = torch.cat([weights[part] for part in CONSUMERS["qkv"]])
    factor = after[0] / before[0]
    assert float(factor.max() / factor.min()) > 1.5, "loud channels are treated differently"
    torch.testing.assert_close(statistics["qkv"].gram, statistics_of(given).rescaled(factor).gram, rtol=1e-3, atol=1e-6)
    errors = [float((given @ (w - before).T).norm()) for w in (plain, nearest(after) / factor)]
    assert errors[1] < 0.8 * errors[0]


def nearest(weights: Tensor) -> Tensor:
    return round_matrix(weights, "int4", 64, symmetric=False, activations="float", search=False).dequantize()


def test_smoothquant_beats_plain_w8a8_where_channels_are_loud(tiny_llama: Path) -> None:
    network, weights, x = loud_layer(tiny_llama)
    wanted, inputs = network.layer(0, weights, plain_products(weights), x)
    assert best_factor([torch.randn(8, 16)], torch.zeros(4, 16), network.spec, "qkv") is None, "nothing to gain"
    smooth = dict(weights)
    apply_smoothquant(smooth, network.spec, inputs)
    torch.testing.assert_close(run(network, smooth, x), wanted, atol=1e-3, rtol=1e-3)
    errors = [float((w8a8(network, w, x) - wanted).norm()) for w in (weights, smooth)]
    assert errors[1] < 0.7 * errors[0]


def w8a8(network: DenseNetwork, weights: LayerTensors, x: Tensor) -> Tensor:
    """The layer in integers."""
    from tandem.engine.kernels.ops.activations import rounded

    def product(part: str, given: Tensor) -> Tensor:
        w = weights[part]
        matrix = round_matrix(w, "int8", w.shape[1], symmetric=True, activations="int8_token")
        return rounded(given, "int8_token") @ matrix.dequantize().T

    return network.layer(0, weights, product, x)[0]


def test_simulation_rounds_inputs_as_the_kernels_do(tiny_llama: Path) -> None:
    """Against the products' own definition, one matrix at a time."""
    from tandem.engine.kernels.ops.products import quantized_linear

    model = quantize(open_checkpoint(tiny_llama), Recipe(precision="int4", group_size=32))
    simulated, name = SimulatedModel(model), "model.layers.0.mlp.down_proj.weight"
    matrix = model.matrix(name)
    assert isinstance(matrix, QuantizedMatrix)
    x = torch.randn(5, 128, generator=torch.Generator().manual_seed(6))
    wanted = quantized_linear(x, matrix.codes, matrix.scale, matrix.offset, matrix.kind, matrix.activations, None)
    torch.testing.assert_close(simulated._product(name, x), wanted)
    assert not torch.allclose(wanted, x @ matrix.dequantize().T, atol=1e-5), "rounding the inputs shows"
