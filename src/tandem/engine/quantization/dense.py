"""The network over whole sequences, without a KV cache: what calibration and quality look at. One layer at a time.

The definition is `models/decoder.py`'s; this one shows what goes into each product, and lets a product be another one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear

from tandem.engine.kernels import reference as ops
from tandem.engine.models.spec import ModelSpec

LayerTensors = dict[str, Tensor]
"""A layer's weights by their names in it (`self_attn.q_proj.weight`); norms as kernels want them."""
Product = Callable[[str, Tensor], Tensor]
"""(name of the weight in its layer, inputs [T, K]) → outputs [T, N], without the bias."""

Q, K, V, O = (f"self_attn.{name}_proj.weight" for name in "qkvo")  # noqa: E741
GATE, UP, DOWN = (f"mlp.{name}_proj.weight" for name in ("gate", "up", "down"))
PRODUCTS = (Q, K, V, O, GATE, UP, DOWN)


@dataclass(slots=True)
class Inputs:
    """What a layer's products are given, [T, K] each."""

    qkv: Tensor
    o: Tensor
    gate_up: Tensor
    down: Tensor

    def of(self, part: str) -> Tensor:
        """The inputs of the product with this weight."""
        if part in (Q, K, V):
            return self.qkv
        if part in (GATE, UP):
            return self.gate_up
        return self.o if part == O else self.down


def mlp_norm_name(spec: ModelSpec) -> str:
    """The norm in front of the MLP. Gemma has one behind attention too, which takes the name it has elsewhere."""
    return "pre_feedforward_layernorm.weight" if spec.post_norms else "post_attention_layernorm.weight"


class DenseNetwork:
    """The parts of the forward pass over sequences [S, L] that begin at position 0."""

    def __init__(self, spec: ModelSpec, length: int) -> None:
        self.spec = spec
        positions = torch.arange(length)
        self._wide = ops.rope_tables(positions, ops.rope_frequencies(spec.head_dim, spec.rope_theta, spec.rope_scaling))
        local = ops.rope_frequencies(spec.head_dim, spec.local_rope_theta or spec.rope_theta, None)
        self._local = ops.rope_tables(positions, local)

    def embed(self, tokens: Tensor, rows: Tensor) -> Tensor:
        """rows: the embedding's rows of these tokens, in their order."""
        return (rows.float() * self.spec.embedding_scale).view(*tokens.shape, -1)

    def layer(self, index: int, weights: Mapping[str, Tensor], product: Product, x: Tensor) -> tuple[Tensor, Inputs]:
        """x [S, L, H] → the same behind the layer, and what its products were given."""
        spec, shape = self.spec, x.shape
        flat = x.flatten(0, 1)
        normed = ops.rms_norm(flat, weights["input_layernorm.weight"], spec.rms_norm_eps)
        mixed = self._attend(index, weights, product, normed, shape[0])
        out = product(O, mixed)
        if spec.post_norms:
            out = ops.rms_norm(out, weights["post_attention_layernorm.weight"], spec.rms_norm_eps)
        flat = flat + out
        inner = ops.rms_norm(flat, weights[mlp_norm_name(spec)], spec.rms_norm_eps)
        activate = ops.silu_mul if spec.activation == "silu" else ops.gelu_tanh_mul
        gated = activate(product(GATE, inner), product(UP, inner))
        out = product(DOWN, gated)
        if spec.post_norms:
            out = ops.rms_norm(out, weights["post_feedforward_layernorm.weight"], spec.rms_norm_eps)
        return (flat + out).view(shape), Inputs(normed, mixed, inner, gated)

    def _attend(self, index: int, weights: Mapping[str, Tensor], product: Product, x: Tensor, count: int) -> Tensor:
        """What o_proj is given, [T, Q · D]."""
        spec = self.spec
        queries = self._heads(weights, product, x, "q", count)
        keys = self._heads(weights, product, x, "k", count)
        values = self._heads(weights, product, x, "v", count)
        local = spec.local_rope_theta is not None and spec.window(index) is not None
        rope = self._local if local else self._wide
        scale = spec.attention_scale if spec.attention_scale is not None else spec.head_dim**-0.5
        outputs = [
            ops.attention(
                ops.apply_rope(q, *rope),
                ops.apply_rope(k, *rope).transpose(0, 1),
                v.transpose(0, 1),
                scale=scale,
                window=spec.window(index),
                soft_cap=spec.attention_soft_cap,
            )
            for q, k, v in zip(queries, keys, values, strict=True)
        ]
        return torch.stack(outputs).flatten(0, 1).flatten(1)

    def _heads(self, weights: Mapping[str, Tensor], product: Product, x: Tensor, which: str, count: int) -> Tensor:
        """[S, L, heads, D], with the bias and the norm on each head where the network has them."""
        spec = self.spec
        projected = product(f"self_attn.{which}_proj.weight", x)
        if spec.qkv_bias:
            projected = projected + weights[f"self_attn.{which}_proj.bias"]
        heads = projected.view(count, -1, projected.shape[1] // spec.head_dim, spec.head_dim)
        if spec.qk_norm and which != "v":
            heads = ops.rms_norm(heads, weights[f"self_attn.{which}_norm.weight"], spec.rms_norm_eps)
        return heads


def plain_products(weights: Mapping[str, Tensor]) -> Product:
    return lambda part, x: linear(x, weights[part])
