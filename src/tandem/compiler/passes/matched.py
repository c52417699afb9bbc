"""What a fused graph turned out to be: a stack of layers, as data. `match.py` reads it off the graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class MatchedMatrix:
    """A product's weight: the constant `name`, or, quantised, `name`.codes, .scale and perhaps .offset."""

    name: str
    kind: str | None
    """None: floats."""
    activations: str
    has_offset: bool = False


@dataclass(frozen=True, slots=True)
class MatchedLayer:
    """Names of constants, None where a layer has none, and the attributes of attention."""

    input_norm: str
    qkv: MatchedMatrix
    qkv_bias: str | None
    q_norm: str | None
    k_norm: str | None
    o: MatchedMatrix
    post_attention_norm: str | None
    mlp_norm: str
    gate_up: MatchedMatrix
    down: MatchedMatrix
    post_mlp_norm: str | None
    activation: str
    num_heads: int
    num_kv_heads: int
    rope: str
    """The table [positions, D] of cosines, then sines."""
    scale: float
    window: int | None
    soft_cap: float | None
    group: int
    cache: int


@dataclass(frozen=True, slots=True)
class MatchedDecoder:
    layers: tuple[MatchedLayer, ...]
    embedding: MatchedMatrix
    embedding_scale: float
    final_norm: str
    head: MatchedMatrix
    """The same name as the embedding's: tied."""
    eps: float
    logit_soft_cap: float | None


class Match(NamedTuple):
    decoder: MatchedDecoder | None
    reason: str
    """Why there is none; empty if there is."""
