"""Moves a factor by input channel from a product's inputs into its weights, and out of whatever made the inputs.

The network computes the same; what changes is which numbers are hard to round. This is what AWQ and SmoothQuant share.
"""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor

from tandem.engine.models.spec import ModelSpec
from tandem.engine.quantization.dense import DOWN, GATE, UP, Inputs, K, LayerTensors, O, Q, V, mlp_norm_name

Joint = Literal["qkv", "o", "gate_up", "down"]
"""A place in a layer where a factor can be moved: the products behind it."""
JOINTS: tuple[Joint, ...] = get_args(Joint)
CONSUMERS: dict[Joint, tuple[str, ...]] = {"qkv": (Q, K, V), "o": (O,), "gate_up": (GATE, UP), "down": (DOWN,)}
FINEST, COARSEST = 1e-3, 1e3


def fold(weights: LayerTensors, spec: ModelSpec, joint: Joint, factor: Tensor) -> None:
    """Divide the inputs at `joint` by factor [K], multiply the weights' columns by it. Replaces entries of `weights`.

    At "o" the factor must be `shared` among the heads that read the same value head.
    """
    for part in CONSUMERS[joint]:
        weights[part] = weights[part] * factor
    if joint == "qkv":
        weights["input_layernorm.weight"] = weights["input_layernorm.weight"] / factor
    elif joint == "gate_up":
        weights[mlp_norm_name(spec)] = weights[mlp_norm_name(spec)] / factor
    elif joint == "down":
        weights[UP] = weights[UP] / factor[:, None]
    else:
        _divide_values(weights, spec, factor)


def _divide_values(weights: LayerTensors, spec: ModelSpec, factor: Tensor) -> None:
    by_value = factor.view(spec.num_kv_heads, -1, spec.head_dim)[:, 0].flatten()
    weights[V] = weights[V] / by_value[:, None]
    bias = "self_attn.v_proj.bias"
    if bias in weights:
        weights[bias] = weights[bias] / by_value


def shared(statistic: Tensor, spec: ModelSpec, joint: Joint) -> Tensor:
    """At "o": the largest among the heads that read the same value, at the place of each; elsewhere as it is. [K]"""
    if joint != "o":
        return statistic
    by_head = statistic.view(spec.num_kv_heads, -1, spec.head_dim)
    return by_head.amax(1, keepdim=True).expand_as(by_head).flatten()


def normalised(factor: Tensor) -> Tensor:
    """Around 1, and never so far from it that float16 scales suffer."""
    middle = (factor.amax() * factor.amin()).sqrt()
    return (factor / middle.clamp(min=1e-12)).clamp(FINEST, COARSEST)


def inputs_at(inputs: Inputs, joint: Joint) -> Tensor:
    return inputs.of(CONSUMERS[joint][0])
