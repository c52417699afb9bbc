"""The network of `models/decoder.py`, from the same weights, on Triton kernels and the vendor's matrix products.

A layer is four products and five or six launches of ours. Nothing here reads back from the device, and no launch
depends on what a tensor holds, so that a whole step can be recorded as a CUDA graph.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

from tandem.engine.kernels import reference as ops
from tandem.engine.kernels.step import GroupTensors, StepTensors
from tandem.engine.kernels.triton.activation import gated
from tandem.engine.kernels.triton.attention import StepLayout, paged_attention
from tandem.engine.kernels.triton.language import PagedKV
from tandem.engine.kernels.triton.norms import add_rms_norm, rms_norm
from tandem.engine.kernels.triton.rope_kv import Rope, rope_and_write_kv
from tandem.engine.kvcache.layer_groups import LayerGroup
from tandem.engine.loading.base import Checkpoint
from tandem.engine.models.decoder import Decoder, LayerWeights
from tandem.engine.models.spec import ModelSpec


class _OnDevice:
    """A checkpoint whose tensors are moved as they are read, so that no second copy of the model fills the host."""

    def __init__(self, inner: Checkpoint, device: torch.device) -> None:
        self.path, self.spec, self.text = inner.path, inner.spec, inner.text
        self._inner = inner
        self._device = device

    def names(self) -> frozenset[str]:
        return self._inner.names()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._inner.shape(name)

    def read(self, name: str, dtype: torch.dtype) -> Tensor:
        return self._inner.read(name, dtype).to(self._device)


class TritonDecoder:
    """Weights on one device, and the forward pass. It writes KV into the memory it is given and owns none."""

    def __init__(
        self,
        spec: ModelSpec,
        groups: tuple[LayerGroup, ...],
        checkpoint: Checkpoint,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.spec = spec
        self.groups = groups
        self.dtype = dtype
        self.device = device
        self._net = Decoder(spec, groups, _OnDevice(checkpoint, device), dtype)
        self._place = {layer: (group, index) for group, g in enumerate(groups) for index, layer in enumerate(g.layers)}
        local_theta = spec.local_rope_theta or spec.rope_theta
        self._frequencies = ops.rope_frequencies(spec.head_dim, spec.rope_theta, spec.rope_scaling).to(device)
        self._local_frequencies = ops.rope_frequencies(spec.head_dim, local_theta, None).to(device)
        # As a number of the weights' type, which it is rounded to (Gemma's √H is not one).
        self._embedding_scale = torch.tensor(spec.embedding_scale, dtype=dtype).item()
        self._scale = spec.attention_scale if spec.attention_scale is not None else spec.head_dim**-0.5

    @property
    def num_bytes(self) -> int:
        """Bytes of all weights, a tied embedding once."""
        return self._net.num_bytes

    @torch.inference_mode()
    def forward(self, step: StepTensors, layout: StepLayout, caches: list[PagedKV]) -> Tensor:
        """Compute the step's tokens and store their KV; returns the final hidden states of all tokens, [T, H].

        caches: one a layer of a group. Slots may be of any integer type, and -1 for tokens that only fill up a batch.
        """
        spec, net = self.spec, self._net
        residual = embedding(step.token_ids, net.embedding)
        if spec.embedding_scale != 1.0:
            residual = residual * self._embedding_scale
        ropes = self._ropes(step.positions)
        normed = rms_norm(residual, net.layers[0].input_norm, spec.rms_norm_eps)
        following = [*(layer.input_norm for layer in net.layers[1:]), net.final_norm]
        for index, (layer, next_norm) in enumerate(zip(net.layers, following, strict=True)):
            out = self._attend(index, layer, normed, ropes[self._is_local(index)], step, layout, caches)
            normed = add_rms_norm(
                out, residual, layer.mlp_norm, spec.rms_norm_eps, inner_weight=layer.attention_out_norm
            )
            out = linear(gated(linear(normed, layer.gate_up), spec.activation), layer.down)
            normed = add_rms_norm(out, residual, next_norm, spec.rms_norm_eps, inner_weight=layer.mlp_out_norm)
        return normed

    def _attend(
        self,
        index: int,
        layer: LayerWeights,
        normed: Tensor,
        rope: Rope,
        step: StepTensors,
        layout: StepLayout,
        caches: list[PagedKV],
    ) -> Tensor:
        spec = self.spec
        group_index, cache_index = self._place[index]
        group: GroupTensors = step.groups[group_index]
        kv = caches[cache_index]
        queries = rope_and_write_kv(
            linear(normed, layer.qkv),
            kv,
            group.slot_mapping,
            rope,
            spec.num_heads,
            bias=layer.qkv_bias,
            q_norm=layer.q_norm,
            k_norm=layer.k_norm,
            eps=spec.rms_norm_eps,
        )
        mixed = paged_attention(
            queries,
            kv,
            step,
            group,
            layout,
            scale=self._scale,
            window=spec.window(index),
            soft_cap=spec.attention_soft_cap,
        )
        return linear(mixed.flatten(1), layer.output)

    def _ropes(self, positions: Tensor) -> tuple[Rope, Rope]:
        """For layers that see everything, and for windowed ones where they have a base frequency of their own."""
        wide = _rope(positions, self._frequencies)
        return wide, wide if self.spec.local_rope_theta is None else _rope(positions, self._local_frequencies)

    def _is_local(self, layer: int) -> bool:
        return self.spec.local_rope_theta is not None and self.spec.window(layer) is not None

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Scores over the vocabulary, float32 [R, V], of the given rows of `forward`'s result."""
        return self._net.logits(hidden)


def _rope(positions: Tensor, frequencies: Tensor) -> Rope:
    cos, sin = ops.rope_tables(positions, frequencies)
    return Rope(cos[:, 0], sin[:, 0])
