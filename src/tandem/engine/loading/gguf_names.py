"""GGUF's tensor names ↔ Hugging Face's. Knows names only; which of them a network has is `expected.py`'s."""

from __future__ import annotations

from tandem.engine.loading.expected import EMBEDDING, FINAL_NORM, HEAD
from tandem.engine.models.spec import Family

ROPE_DIVISORS = "rope_freqs.weight"

_GLOBAL = {EMBEDDING: "token_embd.weight", FINAL_NORM: "output_norm.weight", HEAD: "output.weight"}
_LAYER = {
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.q_proj.bias": "attn_q.bias",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.k_proj.bias": "attn_k.bias",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.v_proj.bias": "attn_v.bias",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
}
# Gemma has a norm behind attention too, so that Hugging Face's post_attention_layernorm is another one there.
_GEMMA_LAYER = _LAYER | {
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
    "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
}


def gguf_name(name: str, family: Family) -> str:
    """`model.layers.3.mlp.up_proj.weight` → `blk.3.ffn_up.weight`."""
    if name in _GLOBAL:
        return _GLOBAL[name]
    layer, _, part = name.removeprefix("model.layers.").partition(".")
    parts = _GEMMA_LAYER if family == "gemma3" else _LAYER
    return f"blk.{layer}.{parts[part]}"


def is_interleaved(name: str, family: Family) -> bool:
    """Whether GGUF's rows of this tensor are in another order: llama's q and k, whose rotary pairs lie side by side."""
    return family == "llama" and name.endswith(("self_attn.q_proj.weight", "self_attn.k_proj.weight"))
