"""A quantised network in plain torch, rounding inputs as the kernels do: its quality, measured without an engine."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from tandem.engine.kernels.ops.activations import rounded
from tandem.engine.kernels.reference import rms_norm, soft_cap_
from tandem.engine.loading.base import Checkpoint
from tandem.engine.loading.expected import EMBEDDING, FINAL_NORM, HEAD
from tandem.engine.quantization.dense import PRODUCTS, DenseNetwork, Product
from tandem.engine.quantization.matrix import QuantizedMatrix
from tandem.engine.quantization.model import QuantizedModel, quantize
from tandem.engine.quantization.recipe import Recipe
from tandem.engine.quantization.stored import PLAIN


class SimulatedModel:
    """Logits of whole sequences. Weights are held dequantised, in float32."""

    def __init__(self, model: QuantizedModel) -> None:
        self._model, self._spec = model, model.spec
        self._weights = {name: _floats(model.matrix(name)) for name in model.matrices}
        self._networks: dict[int, DenseNetwork] = {}

    def logits(self, tokens: Tensor) -> Tensor:
        """tokens [T] → float32 [T, V]."""
        network = self._networks.setdefault(len(tokens), DenseNetwork(self._spec, len(tokens)))
        x = network.embed(tokens[None], self._weights[EMBEDDING][tokens])
        for index in range(self._spec.num_layers):
            at = f"model.layers.{index}."
            vectors = {n.removeprefix(at): v for n, v in self._model.vectors.items() if n.startswith(at)}
            x, _ = network.layer(index, vectors, self._products_of(at), x)
        hidden = rms_norm(x[0], self._model.vector(FINAL_NORM), self._spec.rms_norm_eps)
        return soft_cap_(self._product(HEAD, hidden), self._spec.logit_soft_cap)

    def _products_of(self, at: str) -> Product:
        return lambda part, x: self._product(at + part, x)

    def _product(self, name: str, x: Tensor) -> Tensor:
        if name == HEAD and self._spec.tie_embeddings:
            name = EMBEDDING
        matrix = self._model.matrix(name)
        return linear(rounded(x, matrix.activations) if isinstance(matrix, QuantizedMatrix) else x, self._weights[name])


def reference_model(checkpoint: Checkpoint) -> SimulatedModel:
    """What quality is measured against: the weights in float32, a quantised checkpoint's as it dequantises them."""
    return SimulatedModel(quantize(checkpoint, Recipe(precision="fp32")))


def reference_name(checkpoint: Checkpoint) -> str:
    """The reference, as a manifest names it."""
    kind = getattr(checkpoint, "stored_kind", None)
    kinds = {kind(f"model.layers.0.{part}") for part in PRODUCTS} if kind is not None else set()
    quantised = sorted(k for k in kinds if k not in PLAIN)
    if quantised:
        return f"{checkpoint.path.name}, its {', '.join(quantised)} weights dequantised, in float32"
    return f"{checkpoint.path.name} in float32"


def _floats(matrix: QuantizedMatrix | Tensor) -> Tensor:
    return matrix.dequantize(torch.float32) if isinstance(matrix, QuantizedMatrix) else matrix.float()
