"""Tiny random networks of every family without files, and steps over paged KV: shared by the compiler's tests."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from tandem.compiler.export import Caches, Limits
from tandem.compiler.network import Network
from tandem.engine.kernels.step import GroupTensors, StepTensors
from tandem.engine.loading.base import TextFiles
from tandem.engine.models.decoder import Decoder
from tandem.engine.models.spec import ModelSpec
from tandem.engine.quantization.matrix import Activations, QuantizedMatrix

MAX_CONTEXT = 64
BLOCK_SIZE = 4
LIMITS = Limits(max_tokens=48, max_sequences=8, max_blocks=MAX_CONTEXT // BLOCK_SIZE)

LLAMA = ModelSpec(
    family="llama",
    num_layers=2,
    hidden_size=64,
    intermediate_size=96,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    vocab_size=73,
    max_position=256,
    rms_norm_eps=1e-5,
    rope_theta=1e4,
    tie_embeddings=True,
)
SPECS: dict[str, ModelSpec] = {
    "llama": LLAMA,
    "llama, untied": replace(LLAMA, tie_embeddings=False),
    "mistral": replace(LLAMA, family="mistral", layer_windows=(5, 5), head_dim=32),
    "qwen2": replace(LLAMA, family="qwen2", qkv_bias=True, num_layers=3, layer_windows=(None, 4, 4)),
    "qwen3": replace(LLAMA, family="qwen3", qk_norm=True, num_kv_heads=1),
    "gemma3": replace(
        LLAMA,
        family="gemma3",
        num_layers=3,
        qk_norm=True,
        post_norms=True,
        norm_plus_one=True,
        activation="gelu_tanh",
        embedding_scale=8.3,
        attention_scale=0.2,
        attention_soft_cap=3.0,
        logit_soft_cap=2.0,
        layer_windows=(4, 4, None),
        local_rope_theta=1e3,
    ),
}


class RandomCheckpoint:
    """Numbers that depend on a tensor's name only."""

    path = Path("random")
    text = TextFiles("folder", Path("random"), {})

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec

    def names(self) -> frozenset[str]:
        return frozenset()

    def shape(self, name: str) -> tuple[int, ...]:
        spec, part = self.spec, name.rsplit(".", 2)[-2]
        queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        hidden, inner = spec.hidden_size, spec.intermediate_size
        rows = {"q_proj": queries, "k_proj": keys, "v_proj": keys, "gate_proj": inner, "up_proj": inner}
        rows |= {"o_proj": hidden, "down_proj": hidden}
        if "norm" in part:
            return (spec.head_dim if part in ("q_norm", "k_norm") else hidden,)
        if name.endswith("bias"):
            return (rows[part],)
        columns = {"o_proj": queries, "down_proj": inner}
        return rows.get(part, spec.vocab_size), columns.get(part, hidden)

    def read(self, name: str, dtype: torch.dtype) -> Tensor:
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        values = torch.randn(self.shape(name), generator=generator)
        if "norm" in name:
            values = values * 0.2 + (0.0 if self.spec.norm_plus_one else 1.0)
        elif name.endswith("weight"):
            values = values * 0.1
        return values.to(dtype)


class FloatWeights:
    """A network's weights as floats."""

    def __init__(self, spec: ModelSpec) -> None:
        self.checkpoint = RandomCheckpoint(spec)

    def matrix(self, name: str) -> QuantizedMatrix | Tensor:
        return self.checkpoint.read(name, torch.float32)

    def vector(self, name: str) -> Tensor:
        values = self.checkpoint.read(name, torch.float32)
        return values + 1 if self.checkpoint.spec.norm_plus_one and "norm" in name else values


@dataclass(frozen=True)
class Precision:
    kind: Literal["int8", "int4", "fp8"]
    group: int
    """0: by channel."""
    activations: Activations
    symmetric: bool = True


class RoundedWeights(FloatWeights):
    """Its matrices in few bits."""

    def __init__(self, spec: ModelSpec, precision: Precision) -> None:
        super().__init__(spec)
        self._precision = precision

    def matrix(self, name: str) -> QuantizedMatrix:
        return rounded(self.checkpoint.read(name, torch.float32), self._precision)


def rounded(weight: Tensor, precision: Precision) -> QuantizedMatrix:
    groups = weight.reshape(len(weight), -1, precision.group or weight.shape[1])
    if precision.kind == "fp8":
        scale = groups.abs().amax(-1) / 448
        codes = (groups / scale.unsqueeze(-1)).view_as(weight).to(torch.float8_e4m3fn)
        return QuantizedMatrix(codes, scale, None, "fp8", precision.activations)
    half = 128 if precision.kind == "int8" else 8
    scale = groups.abs().amax(-1) / (half - 1)
    codes = ((groups / scale.unsqueeze(-1)).round() + half).view_as(weight).to(torch.uint8)
    offset = None if precision.symmetric else scale * -half
    return QuantizedMatrix(codes, scale, offset, precision.kind, precision.activations)


class DequantizedCheckpoint(RandomCheckpoint):
    """What `RoundedWeights` stands for, for the reference."""

    def __init__(self, spec: ModelSpec, precision: Precision) -> None:
        super().__init__(spec)
        self._precision = precision

    def read(self, name: str, dtype: torch.dtype) -> Tensor:
        values = super().read(name, torch.float32)
        return (rounded(values, self._precision).dequantize() if values.dim() == 2 else values).to(dtype)


def caches_of(spec: ModelSpec, network: Network, dtype: torch.dtype = torch.float32) -> Caches:
    return Caches(network.num_caches, 40, spec.num_kv_heads, BLOCK_SIZE, spec.head_dim, dtype)


def make_network(spec: ModelSpec, precision: Precision | None = None, dtype: torch.dtype = torch.float32) -> Network:
    weights = FloatWeights(spec) if precision is None else RoundedWeights(spec, precision)
    return Network(spec, weights, dtype, max_context=MAX_CONTEXT)


def make_step(network: Network, queries: Sequence[int], contexts: Sequence[int], rows: Sequence[int]) -> list[Any]:
    """The first seven inputs of `Network.forward`; sequence s always has the same blocks, so steps can follow steps."""
    positions = [p for n, c in zip(queries, contexts, strict=True) for p in range(c - n, c)]
    owners = [s for s, n in enumerate(queries) for _ in range(n)]
    longest = -(-max(contexts) // BLOCK_SIZE)
    tables, slots = [], []
    for group in range(len(network.groups)):
        # Group g has blocks 13 g …; sequence s of at most 16 tokens has 4 of them.
        first = [13 * group + 4 * s for s in range(len(queries))]
        tables.append(torch.tensor([[f + i for i in range(longest)] for f in first], dtype=torch.int32))
        slots.append(torch.tensor([first[s] * BLOCK_SIZE + p for s, p in zip(owners, positions, strict=True)]))
    tokens = [(7 * p + 11 * s + 3) % network.spec.vocab_size for s, p in zip(owners, positions, strict=True)]
    starts = torch.tensor([0, *queries], dtype=torch.int32).cumsum(0).int()
    ints = [torch.tensor(values, dtype=torch.int32) for values in (tokens, positions)]
    return [*ints, starts, torch.tensor(contexts, dtype=torch.int32), tables, slots, torch.tensor(list(rows))]


def reference_logits(decoder: Decoder, step: list[Any], caches: list[Tensor]) -> Tensor:
    """What `models/decoder.py` gives for the same step."""
    tokens, positions, starts, lengths, tables, slots, rows = step
    groups = [GroupTensors(t, s) for t, s in zip(tables, slots, strict=True)]
    hidden = decoder.forward(StepTensors(tokens, positions, starts, lengths, groups, rows), caches)
    return decoder.logits(hidden[rows])


STEPS: list[tuple[list[int], list[int], list[int]]] = [
    ([7, 3], [7, 3], [6, 9]),
    ([1, 1], [8, 4], [0, 1]),
    ([1, 4, 2], [9, 8, 2], [6, 0, 4]),
]
"""Queries, contexts and wanted rows: two prompts, a step that generates, and one that mixes."""
