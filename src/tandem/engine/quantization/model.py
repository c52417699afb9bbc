"""A whole network in few bits, and the one function that makes it of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tandem.core.errors import ConfigError
from tandem.engine.loading.base import Checkpoint
from tandem.engine.loading.expected import EMBEDDING, FINAL_NORM, HEAD
from tandem.engine.models.spec import ModelSpec
from tandem.engine.quantization.awq import apply_awq
from tandem.engine.quantization.calibration import Calibration
from tandem.engine.quantization.dense import PRODUCTS, DenseNetwork, Inputs, LayerTensors, plain_products
from tandem.engine.quantization.folding import CONSUMERS, JOINTS, Joint, inputs_at
from tandem.engine.quantization.fp8 import round_to_fp8
from tandem.engine.quantization.gptq import round_compensating
from tandem.engine.quantization.matrix import Activations, QuantizedMatrix
from tandem.engine.quantization.recipe import HEAD_GROUP, Recipe, check_recipe
from tandem.engine.quantization.rounding import round_matrix
from tandem.engine.quantization.smoothquant import apply_smoothquant
from tandem.engine.quantization.statistics import InputStatistics, statistics_of
from tandem.engine.quantization.stored import StoredWeights

Progress = Callable[[int, int], None]
"""(layers done, layers in all)."""
Weight = QuantizedMatrix | Tensor


@dataclass(slots=True)
class QuantizedModel:
    """Every product's weight by its Hugging Face name, and the vectors as kernels want them.

    q, k and v of a layer have one kind, group size and activations, and so have gate and up.
    """

    spec: ModelSpec
    recipe: Recipe
    matrices: dict[str, Weight] = field(default_factory=dict)
    vectors: dict[str, Tensor] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """What the builder should tell, a sentence without its full stop each."""

    def matrix(self, name: str) -> Weight:
        """The LM head of a tied network is the embedding, one object."""
        return self.matrices[EMBEDDING if name == HEAD and self.spec.tie_embeddings else name]

    def vector(self, name: str) -> Tensor:
        """float32; Gemma's norms have their 1 in already."""
        return self.vectors[name]

    @property
    def num_bytes(self) -> int:
        """As an image keeps them: packed codes, scales and offsets in two bytes if those hold them, vectors in four."""
        return sum(map(matrix_bytes, self.matrices.values())) + sum(4 * v.numel() for v in self.vectors.values())

    @property
    def num_bytes_bf16(self) -> int:
        """The same network's in bf16, which sizes are compared with."""
        return 2 * (sum(_numel(m) for m in self.matrices.values()) + sum(v.numel() for v in self.vectors.values()))


def matrix_bytes(matrix: Weight) -> int:
    if isinstance(matrix, Tensor):
        return matrix.numel() * matrix.element_size()
    numbers = [matrix.scale] if matrix.offset is None else [matrix.scale, matrix.offset]
    wide = matrix.kind == "fp8" or not all(torch.equal(n.half().float(), n) for n in numbers)
    return matrix.codes.numel() * matrix.bits // 8 + sum(n.numel() for n in numbers) * (4 if wide else 2)


def _numel(matrix: Weight) -> int:
    return matrix.numel() if isinstance(matrix, Tensor) else matrix.codes.numel()


def quantize(
    checkpoint: Checkpoint,
    recipe: Recipe,
    *,
    calibration: Calibration | None = None,
    progress: Progress | None = None,
) -> QuantizedModel:
    """The network of `checkpoint` as `recipe` says. Raises `ConfigError` before any work if it can't be.

    Memory: the result (a byte a weight for integers) and one layer in float32.
    """
    check_recipe(recipe, checkpoint.spec, has_calibration=calibration is not None)
    if calibration is not None and int(calibration.tokens.max()) >= checkpoint.spec.vocab_size:
        raise ConfigError("the calibration text has tokens that the model doesn't know; use the model's own tokenizer.")
    with torch.inference_mode():
        builder = _Builder(checkpoint, recipe, calibration if recipe.calibrated else None)
        for index in range(checkpoint.spec.num_layers):
            builder.add_layer(index)
            if progress is not None:
                progress(index + 1, checkpoint.spec.num_layers)
        return builder.finish()


class _Builder:
    """One run of `quantize`. Calibration follows the original network, so that errors don't pile up in what it sees."""

    def __init__(self, checkpoint: Checkpoint, recipe: Recipe, calibration: Calibration | None) -> None:
        self._checkpoint, self._recipe = checkpoint, recipe
        self._model = QuantizedModel(checkpoint.spec, recipe)
        self._stored = StoredWeights(checkpoint) if recipe.kind == "as-is" else None
        self._embedding = _read(checkpoint, EMBEDDING) if self._stored is None else None
        self._network: DenseNetwork | None = None
        if calibration is not None:
            assert self._embedding is not None
            tokens = calibration.tokens
            self._network = DenseNetwork(checkpoint.spec, tokens.shape[1])
            self._x = self._network.embed(tokens, self._embedding[tokens.flatten()])

    def add_layer(self, index: int) -> None:
        at = f"model.layers.{index}."
        names = [name.removeprefix(at) for name in self._checkpoint.names() if name.startswith(at)]
        weights = {name: _read(self._checkpoint, at + name) for name in names if name not in PRODUCTS}
        if self._stored is not None:
            self._keep_stored(at, self._stored)
        else:
            weights |= {name: _read(self._checkpoint, at + name) for name in PRODUCTS}
            statistics = self._calibrate(index, weights)
            for joint in JOINTS:
                for part in CONSUMERS[joint]:
                    self._model.matrices[at + part] = self._rounded(weights[part], at + part, statistics.get(joint))
        self._model.vectors |= {at + name: vector for name, vector in weights.items() if name not in PRODUCTS}

    def _keep_stored(self, at: str, stored: StoredWeights) -> None:
        for joint in JOINTS:
            names = [at + part for part in CONSUMERS[joint]]
            self._model.matrices |= dict(zip(names, stored.together(names), strict=True))

    def _calibrate(self, index: int, weights: LayerTensors) -> dict[Joint, InputStatistics]:
        """Run the layer, change `weights` as the recipe wants, and say what its products then are given."""
        if self._network is None:
            return {}
        self._x, inputs = self._network.layer(index, weights, plain_products(weights), self._x)
        if self._recipe.precision == "smoothquant":
            return apply_smoothquant(weights, self._model.spec, inputs)
        if self._recipe.precision == "awq":
            return apply_awq(weights, self._model.spec, inputs, self._recipe)
        return _all_statistics(inputs)

    def _rounded(self, weights: Tensor, name: str, statistics: InputStatistics | None) -> Weight:
        recipe = self._recipe
        plain = _plain(weights, recipe.kind)
        if plain is not None:
            return plain
        assert recipe.kind in ("int8", "int4")
        activations: Activations = "int8_token" if recipe.precision in ("w8a8", "smoothquant") else "int8_group"
        group_size = recipe.group_for(weights.shape[1], name)
        if recipe.compensates and statistics is not None:
            return round_compensating(
                weights,
                recipe.kind,
                group_size,
                statistics.gram,
                symmetric=recipe.is_symmetric,
                activations=activations,
                search=recipe.search,
            )
        return round_matrix(
            weights,
            recipe.kind,
            group_size,
            symmetric=recipe.is_symmetric,
            activations=activations,
            search=recipe.search,
            importance=None if statistics is None else statistics.importance,
        )

    def finish(self) -> QuantizedModel:
        model = self._model
        model.vectors[FINAL_NORM] = _read(self._checkpoint, FINAL_NORM)
        names = [EMBEDDING] if model.spec.tie_embeddings else [EMBEDDING, HEAD]
        for name in names:
            model.matrices[name] = self._head(name)
        if self._stored is not None:
            self._stored.check_any()
            model.notes += self._stored.notes
        model.notes += _smaller_groups(model)
        return model

    def _head(self, name: str) -> Weight:
        if self._stored is not None and self._recipe.head is None:
            return self._stored.matrix(name)
        kept = self._embedding if name == EMBEDDING else None
        return round_head(_read(self._checkpoint, name) if kept is None else kept, self._recipe)


def round_head(weights: Tensor, recipe: Recipe) -> Weight:
    """Embedding or LM head, [V, H]."""
    plain = _plain(weights, recipe.head_kind)
    if plain is not None:
        return plain
    if recipe.head_kind == "int8":
        # Never with one scale a token: what goes into the head can't be smoothed where its weights are the embedding's.
        return round_matrix(weights, "int8", weights.shape[1], symmetric=True, activations="int8_group")
    return round_matrix(
        weights,
        "int4",
        HEAD_GROUP,
        symmetric=recipe.is_symmetric,
        activations="int8_group",
        search=recipe.search,
    )


def _plain(weights: Tensor, kind: str) -> Weight | None:
    """Kinds that know neither groups nor offsets."""
    if kind == "bf16":
        return weights.to(torch.bfloat16)
    if kind == "fp32":
        return weights
    return round_to_fp8(weights) if kind == "fp8" else None


def _read(checkpoint: Checkpoint, name: str) -> Tensor:
    """float32; with the 1 that Gemma's norms leave out."""
    tensor = checkpoint.read(name, torch.float32)
    return tensor + 1 if checkpoint.spec.norm_plus_one and name.endswith("norm.weight") else tensor


def _all_statistics(inputs: Inputs) -> dict[Joint, InputStatistics]:
    return {joint: statistics_of(inputs_at(inputs, joint)) for joint in JOINTS}


def _smaller_groups(model: QuantizedModel) -> list[str]:
    wanted = model.recipe.wanted_group
    if model.recipe.kind not in ("int8", "int4") or not wanted:
        return []
    sizes = {
        m.shape[1]: m.group_size
        for name, m in model.matrices.items()
        if isinstance(m, QuantizedMatrix) and name not in (EMBEDDING, HEAD) and m.group_size != wanted
    }
    return [
        f"products of {k} inputs have groups of {size}, for {wanted} doesn't divide them" for k, size in sizes.items()
    ]
