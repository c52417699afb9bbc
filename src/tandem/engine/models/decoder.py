"""The decoder-only transformer, in plain torch over a paged KV cache. Every family is one setting of its `ModelSpec`.

This is the definition that other ways of running the network (native kernels, compiled graphs) are tested against.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

from tandem.engine.kernels import reference as ops
from tandem.engine.kernels.step import GroupTensors, StepTensors
from tandem.engine.kvcache.layer_groups import LayerGroup
from tandem.engine.loading.base import Checkpoint
from tandem.engine.models.spec import ModelSpec

ReadTensor = Callable[[str], Tensor]


@dataclass(slots=True)
class LayerWeights:
    """One layer. Products are stored [out, in], as `torch.nn.functional.linear` wants them."""

    input_norm: Tensor
    qkv: Tensor
    """[(Q + 2K) · D, H]: queries, keys, values below one another, so that one product makes all three."""
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: Tensor
    """[H, Q · D]."""
    attention_out_norm: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    """[2 · intermediate, H]: gate, then up."""
    down: Tensor
    """[H, intermediate]."""
    mlp_out_norm: Tensor | None


class Decoder:
    """Weights and the forward pass. It writes KV into the caches it is given and owns none."""

    def __init__(
        self, spec: ModelSpec, groups: tuple[LayerGroup, ...], checkpoint: Checkpoint, dtype: torch.dtype
    ) -> None:
        self.spec = spec
        self.dtype = dtype
        self._place = {layer: (group, index) for group, g in enumerate(groups) for index, layer in enumerate(g.layers)}
        self._read: ReadTensor = lambda name: checkpoint.read(name, dtype)
        self.embedding = self._read("model.embed_tokens.weight")
        self.layers = [self._load_layer(index) for index in range(spec.num_layers)]
        self.final_norm = self._load_norm("model.norm.weight")
        self.lm_head = self.embedding if spec.tie_embeddings else self._read("lm_head.weight")
        self._frequencies = ops.rope_frequencies(spec.head_dim, spec.rope_theta, spec.rope_scaling)
        self._local_frequencies = ops.rope_frequencies(spec.head_dim, spec.local_rope_theta or spec.rope_theta, None)

    def _load_norm(self, name: str) -> Tensor:
        weight = self._read(name)
        return weight + 1 if self.spec.norm_plus_one else weight

    def _load_layer(self, index: int) -> LayerWeights:
        spec, at = self.spec, f"model.layers.{index}."
        projections = [f"{at}self_attn.{name}_proj" for name in "qkv"]
        before_mlp = "pre_feedforward_layernorm" if spec.post_norms else "post_attention_layernorm"
        return LayerWeights(
            input_norm=self._load_norm(f"{at}input_layernorm.weight"),
            qkv=torch.cat([self._read(f"{p}.weight") for p in projections]),
            qkv_bias=torch.cat([self._read(f"{p}.bias") for p in projections]) if spec.qkv_bias else None,
            q_norm=self._load_norm(f"{at}self_attn.q_norm.weight") if spec.qk_norm else None,
            k_norm=self._load_norm(f"{at}self_attn.k_norm.weight") if spec.qk_norm else None,
            output=self._read(f"{at}self_attn.o_proj.weight"),
            attention_out_norm=self._load_norm(f"{at}post_attention_layernorm.weight") if spec.post_norms else None,
            mlp_norm=self._load_norm(f"{at}{before_mlp}.weight"),
            gate_up=torch.cat([self._read(f"{at}mlp.{name}_proj.weight") for name in ("gate", "up")]),
            down=self._read(f"{at}mlp.down_proj.weight"),
            mlp_out_norm=self._load_norm(f"{at}post_feedforward_layernorm.weight") if spec.post_norms else None,
        )

    @property
    def num_bytes(self) -> int:
        """Bytes of all weights, a tied embedding once."""
        tensors = [self.embedding, self.final_norm]
        tensors += [] if self.lm_head is self.embedding else [self.lm_head]
        for layer in self.layers:
            tensors += [t for name in LayerWeights.__slots__ if (t := getattr(layer, name)) is not None]
        return sum(t.numel() * t.element_size() for t in tensors)

    @torch.inference_mode()
    def forward(self, step: StepTensors, caches: list[Tensor]) -> Tensor:
        """Compute the step's tokens and store their KV; returns the final hidden states of all tokens, [T, H].

        caches: one a layer of a group, [2, blocks, K, block_size, D] each.
        """
        spec = self.spec
        x = embedding(step.token_ids, self.embedding)
        if spec.embedding_scale != 1.0:
            x = x * torch.tensor(spec.embedding_scale, dtype=x.dtype)
        wide = ops.rope_tables(step.positions, self._frequencies)
        local = ops.rope_tables(step.positions, self._local_frequencies)
        for index, layer in enumerate(self.layers):
            group, cache_index = self._place[index]
            windowed = spec.local_rope_theta is not None and spec.window(index) is not None
            rope = local if windowed else wide
            x = self._attend(layer, x, rope, step, step.groups[group], caches[cache_index], spec.window(index))
            x = self._mlp(layer, x)
        return ops.rms_norm(x, self.final_norm, spec.rms_norm_eps)

    def _attend(
        self,
        layer: LayerWeights,
        x: Tensor,
        rope: tuple[Tensor, Tensor],
        step: StepTensors,
        group: GroupTensors,
        cache: Tensor,
        window: int | None,
    ) -> Tensor:
        spec = self.spec
        projected = linear(ops.rms_norm(x, layer.input_norm, spec.rms_norm_eps), layer.qkv, layer.qkv_bias)
        heads = projected.view(len(x), -1, spec.head_dim)
        queries, keys, values = torch.split(heads, [spec.num_heads, spec.num_kv_heads, spec.num_kv_heads], dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            queries = ops.rms_norm(queries, layer.q_norm, spec.rms_norm_eps)
            keys = ops.rms_norm(keys, layer.k_norm, spec.rms_norm_eps)
        queries, keys = ops.apply_rope(queries, *rope), ops.apply_rope(keys, *rope)
        ops.write_kv(cache, keys, values, group.slot_mapping)
        scale = spec.attention_scale if spec.attention_scale is not None else spec.head_dim**-0.5
        mixed = ops.paged_attention(
            queries, cache, step, group, scale=scale, window=window, soft_cap=spec.attention_soft_cap
        )
        out = linear(mixed.flatten(1), layer.output)
        if layer.attention_out_norm is not None:
            out = ops.rms_norm(out, layer.attention_out_norm, spec.rms_norm_eps)
        return x + out

    def _mlp(self, layer: LayerWeights, x: Tensor) -> Tensor:
        normed = ops.rms_norm(x, layer.mlp_norm, self.spec.rms_norm_eps)
        gate, up = linear(normed, layer.gate_up).chunk(2, dim=-1)
        activate = ops.silu_mul if self.spec.activation == "silu" else ops.gelu_tanh_mul
        out = linear(activate(gate, up), layer.down)
        if layer.mlp_out_norm is not None:
            out = ops.rms_norm(out, layer.mlp_out_norm, self.spec.rms_norm_eps)
        return x + out

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Scores over the vocabulary, float32 [R, V], of the given rows of `forward`'s result."""
        return ops.soft_cap_(linear(hidden, self.lm_head).float(), self.spec.logit_soft_cap)
