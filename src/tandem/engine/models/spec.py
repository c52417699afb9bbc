"""The shape of a network, as numbers: what the loader reads, the runner builds and the planner computes with.

No torch here: the planner reads it on machines that have none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Family = Literal["llama", "mistral", "qwen2", "qwen3", "gemma3"]
Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How rotary frequencies are stretched for long contexts. `linear` divides all of them; `llama3` is Llama 3.1's."""

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A decoder-only transformer. Sizes are in elements, not bytes."""

    family: Family
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position: int
    """Longest context the model was made for, in tokens."""
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    local_rope_theta: float | None = None
    """Base frequency of windowed layers where it differs (Gemma 3); they take no scaling."""
    activation: Activation = "silu"
    tie_embeddings: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    """RMSNorm on each head of q and k before RoPE (Qwen 3, Gemma 3)."""
    post_norms: bool = False
    """Norms also behind attention and behind the MLP (Gemma)."""
    norm_plus_one: bool = False
    """The stored norm weight w means 1 + w (Gemma in Hugging Face's layout; in GGUF the 1 is already in)."""
    attention_scale: float | None = None
    """Factor on q·k; None: head_dim ** -0.5."""
    attention_soft_cap: float | None = None
    logit_soft_cap: float | None = None
    embedding_scale: float = 1.0
    layer_windows: tuple[int | None, ...] = ()
    """By layer: how many tokens back attention reaches (itself included), or None for all. Empty: None everywhere."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    """All ids that end a generation, from the generation configuration, the model's and the tokenizer's."""

    def window(self, layer: int) -> int | None:
        return self.layer_windows[layer] if self.layer_windows else None

    @property
    def num_parameters(self) -> int:
        """Weights in the network, the tied embedding counted once."""
        attention = self.hidden_size * self.head_dim * (2 * self.num_heads + 2 * self.num_kv_heads)
        mlp = 3 * self.hidden_size * self.intermediate_size
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_embeddings else 2)
        return self.num_layers * (attention + mlp + 2 * self.hidden_size) + embeddings + self.hidden_size

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        """Bytes of KV for one token in all layers: keys and values of every KV head."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * element_bytes
