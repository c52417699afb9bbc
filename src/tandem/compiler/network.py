"""The network as a plain torch module to be exported: every step spelled out, one product a projection.

It is `engine/models/decoder.py` again, with nothing joined by hand: `compiler/passes/` does that, where one can read
it. Only what a graph can't say in plain torch is an operator of ours: the KV cache, attention over it, and quantised
weights. Activations have the weights' type; norms and rotations are computed in float32.

Weights are buffers with short stable names: `embedding`, `layers.0.q`, …, `final_norm`, `head`; a quantised one is a
group of buffers `….codes`, `….scale` and, unless symmetric, `….offset`.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, gelu, linear, silu

from tandem.engine.kernels import ops
from tandem.engine.kernels.reference import rope_frequencies
from tandem.engine.kvcache.layer_groups import LayerGroup, group_layers
from tandem.engine.models.spec import ModelSpec
from tandem.engine.quantization.matrix import QuantizedMatrix


class Weights(Protocol):
    """Where a network's weights come from, by their names in Hugging Face's layout."""

    def matrix(self, name: str) -> QuantizedMatrix | Tensor: ...

    def vector(self, name: str) -> Tensor:
        """float32; where a norm's stored w means 1 + w, with the 1 added."""
        ...


class Matrix(nn.Module):
    """A quantised matrix as buffers."""

    codes: Tensor
    scale: Tensor
    offset: Tensor | None

    def __init__(self, matrix: QuantizedMatrix, dtype: torch.dtype) -> None:
        super().__init__()
        self.kind: str = matrix.kind
        self.activations: str = matrix.activations
        self.dtype = dtype
        self.register_buffer("codes", matrix.codes)
        self.register_buffer("scale", matrix.scale)
        self.register_buffer("offset", matrix.offset)

    def dequantized(self) -> Tensor:
        weights: Tensor = ops.dequantize(self.codes, self.scale, self.offset, self.kind, self.dtype)
        return weights


def place(module: nn.Module, name: str, weight: QuantizedMatrix | Tensor, dtype: torch.dtype) -> None:
    """The weight becomes `module.name`; one in floats is converted."""
    if isinstance(weight, QuantizedMatrix):
        module.add_module(name, Matrix(weight, dtype))
    else:
        module.register_buffer(name, weight.to(dtype))


def full(weight: Matrix | Tensor) -> Tensor:
    return weight if isinstance(weight, Tensor) else weight.dequantized()


def product(x: Tensor, weight: Matrix | Tensor, bias: Tensor | None = None) -> Tensor:
    """x [T, K] → [T, N]. Integer products see rounded inputs; that is a step of its own here."""
    if isinstance(weight, Matrix) and weight.activations != "float":
        x = ops.round_activations(x, weight.activations)
    return linear(x, full(weight), bias)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Spelled out, over the last dimension; weight: float32."""
    wide = cast(x, torch.float32)
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return cast(cast(wide * scale, x.dtype) * weight, x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Pairs (i, i + D/2) of every head, [T, heads, D]."""
    first, second = cast(x, torch.float32).chunk(2, dim=-1)
    return cast(torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1), x.dtype)


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """No step in the graph where it changes nothing."""
    return x if x.dtype == dtype else x.to(dtype)


class Rope(nn.Module):
    """Cosines and sines by position."""

    frequencies: Tensor

    def __init__(self, frequencies: Tensor, max_context: int) -> None:
        super().__init__()
        self.max_context = max_context
        self.register_buffer("frequencies", frequencies)

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """[T, 1, D/2] each, float32, from one table over all positions (constant folding computes it once)."""
        everywhere = torch.arange(self.max_context, dtype=torch.float32, device=self.frequencies.device)
        angles = everywhere.unsqueeze(1) * self.frequencies
        table = torch.cat((angles.cos(), angles.sin()), dim=-1)
        cos, sin = table.index_select(0, positions).unsqueeze(1).chunk(2, dim=-1)
        return cos, sin


class Layer(nn.Module):
    """One layer of the stack. It adds to the residual stream and writes its own keys and values."""

    o: Matrix | Tensor
    gate: Matrix | Tensor
    up: Matrix | Tensor
    down: Matrix | Tensor
    input_norm: Tensor
    mlp_norm: Tensor
    post_attention_norm: Tensor | None
    post_mlp_norm: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None

    def __init__(self, spec: ModelSpec, index: int, weights: Weights, dtype: torch.dtype) -> None:
        super().__init__()
        self.spec = spec
        self.dtype = dtype
        self.window = spec.window(index)
        self.scale = spec.attention_scale if spec.attention_scale is not None else spec.head_dim**-0.5
        self._load(weights, f"model.layers.{index}.")

    def _load(self, weights: Weights, at: str) -> None:
        for name in ("q", "k", "v", "o"):
            place(self, name, weights.matrix(f"{at}self_attn.{name}_proj.weight"), self.dtype)
        for name in ("gate", "up", "down"):
            place(self, name, weights.matrix(f"{at}mlp.{name}_proj.weight"), self.dtype)
        for name in "qkv":
            bias = weights.vector(f"{at}self_attn.{name}_proj.bias") if self.spec.qkv_bias else None
            self.register_buffer(f"{name}_bias", None if bias is None else bias.to(self.dtype))
        for name, stored in self._norms().items():
            self.register_buffer(name, None if stored is None else weights.vector(f"{at}{stored}.weight").float())

    def _norms(self) -> dict[str, str | None]:
        """Our name → Hugging Face's, which calls the norm before the MLP differently where there are norms behind."""
        has_heads, has_post = self.spec.qk_norm, self.spec.post_norms
        return {
            "input_norm": "input_layernorm",
            "mlp_norm": "pre_feedforward_layernorm" if has_post else "post_attention_layernorm",
            "post_attention_norm": "post_attention_layernorm" if has_post else None,
            "post_mlp_norm": "post_feedforward_layernorm" if has_post else None,
            "q_norm": "self_attn.q_norm" if has_heads else None,
            "k_norm": "self_attn.k_norm" if has_heads else None,
        }

    def forward(
        self,
        x: Tensor,
        rope: tuple[Tensor, Tensor],
        query_start: Tensor,
        context_len: Tensor,
        block_table: Tensor,
        slot_mapping: Tensor,
        cache: Tensor,
    ) -> Tensor:
        normed = self._norm(x, self.input_norm)
        queries = rotate(self._norm(self._heads(normed, "q"), self.q_norm), *rope)
        keys = rotate(self._norm(self._heads(normed, "k"), self.k_norm), *rope)
        ops.write_kv(keys, self._heads(normed, "v"), slot_mapping, cache)
        mixed = ops.attention(
            queries,
            cache,
            query_start,
            context_len,
            block_table,
            self.scale,
            self.window,
            self.spec.attention_soft_cap,
        )
        x = x + self._norm(product(mixed.flatten(1), self.o), self.post_attention_norm)
        return x + self._norm(self._mlp(self._norm(x, self.mlp_norm)), self.post_mlp_norm)

    def _heads(self, normed: Tensor, name: str) -> Tensor:
        """[T, heads, D] of the projection q, k or v."""
        projected = product(normed, getattr(self, name), getattr(self, f"{name}_bias"))
        return projected.view(-1, projected.shape[1] // self.spec.head_dim, self.spec.head_dim)

    def _mlp(self, normed: Tensor) -> Tensor:
        gate, up = product(normed, self.gate), product(normed, self.up)
        active = silu(gate) if self.spec.activation == "silu" else gelu(gate, approximate="tanh")
        return product(active * up, self.down)

    def _norm(self, x: Tensor, weight: Tensor | None) -> Tensor:
        return x if weight is None else rms_norm(x, weight, self.spec.rms_norm_eps)


class Network(nn.Module):
    """The whole stack, token ids to logits. `max_context` bounds the positions that RoPE has a table for."""

    embedding: Matrix | Tensor
    head: Matrix | Tensor
    final_norm: Tensor

    def __init__(
        self,
        spec: ModelSpec,
        weights: Weights,
        dtype: torch.dtype,
        *,
        max_context: int,
        groups: tuple[LayerGroup, ...] | None = None,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.dtype = dtype
        self.groups = groups or group_layers([spec.window(layer) for layer in range(spec.num_layers)])
        self._place = {layer: (g, i) for g, group in enumerate(self.groups) for i, layer in enumerate(group.layers)}
        place(self, "embedding", weights.matrix("model.embed_tokens.weight"), dtype)
        if not spec.tie_embeddings:
            place(self, "head", weights.matrix("lm_head.weight"), dtype)
        self.register_buffer("final_norm", weights.vector("model.norm.weight").float())
        self.layers = nn.ModuleList(Layer(spec, index, weights, dtype) for index in range(spec.num_layers))
        self.rope = Rope(rope_frequencies(spec.head_dim, spec.rope_theta, spec.rope_scaling), max_context)
        if spec.local_rope_theta is not None:
            self.rope_local = Rope(rope_frequencies(spec.head_dim, spec.local_rope_theta, None), max_context)
        # As a number of the weights' type, which it is rounded to (Gemma's √H is not one).
        self._embedding_scale = torch.tensor(spec.embedding_scale, dtype=dtype).item()

    @property
    def num_caches(self) -> int:
        """Layer j of every group stores in cache j."""
        return len(self.groups[0].layers)

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        query_start: Tensor,
        context_len: Tensor,
        block_tables: list[Tensor],
        slot_mapping: list[Tensor],
        sample_rows: Tensor,
        caches: list[Tensor],
    ) -> Tensor:
        """Logits of the rows `sample_rows`, float32 [R, V]. The step's tensors are those of `kernels/step.py`."""
        x = self._embed(token_ids)
        wide = self.rope(positions)
        local = wide if self.spec.local_rope_theta is None else self.rope_local(positions)
        for index, layer in enumerate(self.layers):
            group, cache = self._place[index]
            rope = wide if self.spec.window(index) is None else local
            x = layer(x, rope, query_start, context_len, block_tables[group], slot_mapping[group], caches[cache])
        return self._logits(rms_norm(x, self.final_norm, self.spec.rms_norm_eps)).index_select(0, sample_rows)

    def _embed(self, token_ids: Tensor) -> Tensor:
        x = embedding(token_ids, full(self.embedding))
        return x if self._embedding_scale == 1.0 else x * self._embedding_scale

    def _logits(self, hidden: Tensor) -> Tensor:
        """Of every row: only a pass knows that few are wanted."""
        logits = cast(product(hidden, self.embedding if self.spec.tie_embeddings else self.head), torch.float32)
        cap = self.spec.logit_soft_cap
        return logits if cap is None else torch.tanh(logits / cap) * cap
