"""Activation-aware weight quantisation: input channels that carry much get finer steps.

Each joint's inputs are divided by a factor that grows with the channel's mean magnitude, and the weights multiplied by
it, so that what matters is rounded more finely relative to its effect. How strongly is searched, joint by joint, for
the least change in the outputs. After Lin et al., "AWQ", https://arxiv.org/abs/2306.00978.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tandem.engine.models.spec import ModelSpec
from tandem.engine.quantization.dense import Inputs, LayerTensors
from tandem.engine.quantization.folding import CONSUMERS, JOINTS, Joint, fold, inputs_at, normalised, shared
from tandem.engine.quantization.recipe import Recipe
from tandem.engine.quantization.rounding import round_matrix
from tandem.engine.quantization.statistics import InputStatistics, statistics_of

STRENGTHS = tuple(step / 16 for step in range(1, 16))
"""Exponents on the mean magnitude; 0, which leaves the weights alone, is always tried too."""


def apply_awq(weights: LayerTensors, spec: ModelSpec, inputs: Inputs, recipe: Recipe) -> dict[Joint, InputStatistics]:
    """Fold the best factors into a layer's weights; returns the statistics of the inputs as they then are."""
    found: dict[Joint, InputStatistics] = {}
    for joint in JOINTS:
        statistics = statistics_of(inputs_at(inputs, joint))
        factor = best_factor([weights[part] for part in CONSUMERS[joint]], statistics, spec, joint, recipe)
        if factor is not None:
            fold(weights, spec, joint, factor)
            statistics = statistics.rescaled(factor)
        found[joint] = statistics
    return found


def best_factor(
    matrices: list[Tensor], statistics: InputStatistics, spec: ModelSpec, joint: Joint, recipe: Recipe
) -> Tensor | None:
    """[K], or None where nothing is better than leaving the weights alone."""
    magnitude = shared(statistics.mean, spec, joint).clamp(min=1e-6)
    stacked = torch.cat(matrices)
    best, least = None, _cost(stacked, None, statistics, recipe)
    for strength in STRENGTHS:
        factor = normalised(magnitude**strength)
        cost = _cost(stacked, factor, statistics, recipe)
        if cost < least:
            best, least = factor, cost
    return best


def _cost(weights: Tensor, factor: Tensor | None, statistics: InputStatistics, recipe: Recipe) -> float:
    scaled = weights if factor is None else weights * factor
    rounded = round_matrix(
        scaled,
        "int4",
        recipe.group_for(weights.shape[1]),
        symmetric=recipe.is_symmetric,
        activations="float",
        search=False,
    ).dequantize()
    return statistics.cost((rounded if factor is None else rounded / factor) - weights)
