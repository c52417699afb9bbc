"""SmoothQuant: moves what makes activations hard to round, single large channels, into the weights.

Each joint's inputs are divided by a factor by channel. It begins as max|x|^a / max|w|^(1-a), a searched joint by joint,
and is then refined by gradient descent on the expected rounding error of both sides. What has the least error in the
whole integer product wins, leaving things alone included. After Xiao et al., "SmoothQuant",
https://arxiv.org/abs/2211.10438; the refinement is ours.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import linear

from tandem.engine.kernels.ops.activations import rounded
from tandem.engine.models.spec import ModelSpec
from tandem.engine.quantization.dense import Inputs, LayerTensors
from tandem.engine.quantization.folding import CONSUMERS, JOINTS, Joint, fold, inputs_at, normalised, shared
from tandem.engine.quantization.rounding import round_matrix
from tandem.engine.quantization.statistics import InputStatistics, statistics_of

MIGRATIONS = (0.4, 0.5, 0.6, 0.7, 0.8)
SAMPLE_LENGTH = 512
"""Tokens that a candidate is judged on."""
SAMPLE_ROWS = 1024
"""Outputs whose weights the refinement looks at."""
NUM_STEPS = 60
STEP_SIZE = 0.05
"""Of a factor's logarithm, at first; it falls to zero."""


def apply_smoothquant(weights: LayerTensors, spec: ModelSpec, inputs: Inputs) -> dict[Joint, InputStatistics]:
    """Fold the best factors into a layer's weights; returns the statistics of the inputs as they then are."""
    found: dict[Joint, InputStatistics] = {}
    for joint in JOINTS:
        given = inputs_at(inputs, joint)
        factor = best_factor([weights[part] for part in CONSUMERS[joint]], given, spec, joint)
        if factor is not None:
            fold(weights, spec, joint, factor)
        found[joint] = statistics_of(given if factor is None else given / factor)
    return found


def best_factor(matrices: list[Tensor], inputs: Tensor, spec: ModelSpec, joint: Joint) -> Tensor | None:
    """[K], or None where nothing is better than plain rounding."""
    stacked = torch.cat(matrices)
    sample = _every(inputs, SAMPLE_LENGTH)
    wanted = linear(sample, stacked)
    best, least = None, _error(stacked, sample, wanted)
    for factor in _candidates(stacked, inputs, spec, joint):
        error = _error(stacked * factor, sample / factor, wanted)
        if error < least:
            best, least = factor, error
    if best is None or joint == "o":  # whose heads share factors, and whose inputs are even
        return best
    refined = normalised(_refine(best, stacked, sample, wanted))
    return refined if _error(stacked * refined, sample / refined, wanted) < least else best


def _candidates(stacked: Tensor, inputs: Tensor, spec: ModelSpec, joint: Joint) -> Iterator[Tensor]:
    largest = shared(inputs.abs().amax(0), spec, joint).clamp(min=1e-5)
    weight = shared(stacked.abs().amax(0), spec, joint).clamp(min=1e-5)
    for migration in MIGRATIONS:
        yield normalised(largest**migration / weight ** (1 - migration))


def _error(weights: Tensor, inputs: Tensor, wanted: Tensor) -> float:
    """Of the integer product, relative to each token's outputs, so that no token outweighs the others."""
    matrix = round_matrix(weights, "int8", weights.shape[1], symmetric=True, activations="int8_token").dequantize()
    change = linear(rounded(inputs, "int8_token"), matrix) - wanted
    return float((change.square().sum(-1) / _energy(wanted)).mean())


def _refine(factor: Tensor, stacked: Tensor, sample: Tensor, wanted: Tensor) -> Tensor:
    """Descend on the logarithm of the expected error, with Adam's steps.

    Rounding with steps d adds d² / 12 to each number's square: an input's step is its token's largest by 127, a
    weight's its row's. The error of the product is either one's times the other side's energy, summed.
    """
    rows = _every(stacked, SAMPLE_ROWS)
    energy = _energy(wanted)
    with torch.inference_mode(False), torch.enable_grad():
        inputs, outputs = sample.abs().clone(), rows.abs().clone()
        inputs /= energy.sqrt()[:, None]
        input_energy, weight_energy = inputs.square().mean(0), stacked.square().mean(0).clone()
        logs = factor.log().clone().requires_grad_()
        optimizer = torch.optim.Adam([logs], STEP_SIZE, betas=(0.9, 0.99))
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 1.0 / NUM_STEPS, NUM_STEPS)
        for _ in range(NUM_STEPS):
            by = logs.exp()
            input_steps = (inputs / by).amax(-1).square().mean()
            weight_steps = (outputs * by).amax(-1).square().mean()
            error = input_steps * (weight_energy * by * by).sum() + weight_steps * (input_energy / by / by).sum()
            optimizer.zero_grad()
            error.log().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
        return logs.detach().exp()


def _energy(outputs: Tensor) -> Tensor:
    return outputs.square().sum(-1).clamp(min=1e-12)


def _every(rows: Tensor, count: int) -> Tensor:
    """About `count` rows, evenly spread."""
    return rows[:: max(1, len(rows) // count)]
