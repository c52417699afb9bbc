"""From the matched graph to the weights that the native kernels pack: the constants that its operators read."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.fx import GraphModule

from tandem.compiler.passes.match import MatchedDecoder, MatchedLayer, MatchedMatrix
from tandem.core.errors import ModelUnsupported
from tandem.engine.kernels.cpu.weights import DecoderWeights, LayerWeights
from tandem.engine.models.spec import ModelSpec
from tandem.engine.quantization.matrix import QuantizedMatrix


class GraphConstants:
    """Reads the constants of a fused graph; copies none."""

    def __init__(self, module: GraphModule) -> None:
        self._module = module

    def tensor(self, name: str) -> Tensor:
        value: object = self._module
        for part in name.split("."):
            value = getattr(value, part)
        assert isinstance(value, Tensor), name
        return value.detach()

    def vector(self, name: str | None) -> Tensor | None:
        return None if name is None else self.tensor(name).float()

    def matrix(self, found: MatchedMatrix) -> QuantizedMatrix | Tensor:
        if found.kind is None:
            return self.tensor(found.name)
        offset = self.tensor(f"{found.name}.offset") if found.has_offset else None
        codes, scale = self.tensor(f"{found.name}.codes"), self.tensor(f"{found.name}.scale")
        return QuantizedMatrix(codes, scale, offset, found.kind, found.activations)  # type: ignore[arg-type]


def decoder_weights(module: GraphModule, matched: MatchedDecoder, spec: ModelSpec) -> DecoderWeights:
    """Everything the stack reads. Raises `ModelUnsupported` where the graph and the shape of the network disagree."""
    _check(matched, spec)
    constants = GraphConstants(module)
    final_norm = constants.vector(matched.final_norm)
    assert final_norm is not None
    tied = matched.head.name == matched.embedding.name
    return DecoderWeights(
        layers=[_layer(constants, layer) for layer in matched.layers],
        head=constants.matrix(matched.head),
        embedding=None if tied else _looked_up(constants.matrix(matched.embedding)),
        final_norm=final_norm,
    )


def _layer(constants: GraphConstants, layer: MatchedLayer) -> LayerWeights:
    input_norm, mlp_norm = constants.vector(layer.input_norm), constants.vector(layer.mlp_norm)
    assert input_norm is not None
    assert mlp_norm is not None
    return LayerWeights(
        input_norm=input_norm,
        mlp_norm=mlp_norm,
        qkv=constants.matrix(layer.qkv),
        o=constants.matrix(layer.o),
        gate_up=constants.matrix(layer.gate_up),
        down=constants.matrix(layer.down),
        qkv_bias=constants.vector(layer.qkv_bias),
        q_norm=constants.vector(layer.q_norm),
        k_norm=constants.vector(layer.k_norm),
        post_attention_norm=constants.vector(layer.post_attention_norm),
        post_mlp_norm=constants.vector(layer.post_mlp_norm),
    )


def _looked_up(matrix: QuantizedMatrix | Tensor) -> QuantizedMatrix | Tensor:
    """An embedding is multiplied with nothing; integers are packed as for a product all the same."""
    if isinstance(matrix, Tensor) or matrix.kind == "fp8":
        return matrix
    return replace(matrix, activations="int8_token")


def _check(matched: MatchedDecoder, spec: ModelSpec) -> None:
    """The kernels are configured from the spec: it has to say what the graph computes."""
    scale = spec.attention_scale if spec.attention_scale is not None else spec.head_dim**-0.5
    for index, layer in enumerate(matched.layers):
        found = (layer.num_heads, layer.num_kv_heads, layer.window, layer.soft_cap, layer.activation, layer.scale)
        activation = "silu" if spec.activation == "silu" else "gelu_tanh"
        told = (spec.num_heads, spec.num_kv_heads, spec.window(index), spec.attention_soft_cap, activation, scale)
        if found != told:
            raise ModelUnsupported(f"Layer {index} of the graph computes {found}, and the model's shape says {told}.")
    if len(matched.layers) != spec.num_layers or matched.eps != spec.rms_norm_eps:
        raise ModelUnsupported("The graph has other layers or norms than the model's shape says.")


def bytes_of(image: Tensor) -> memoryview:
    """A packed image as bytes, not copied."""
    assert image.dtype == torch.uint8
    return memoryview(image.numpy()).cast("B")  # type: ignore[arg-type]
