"""transformers configurations of tiny models, one or more a family, with what sets each apart switched on."""

from __future__ import annotations

from typing import Any

from tests.engine.models.tiny import VOCAB, llama_config

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def mistral(**changes: Any) -> Any:
    from transformers import MistralConfig

    return MistralConfig(**{**SIZES, "head_dim": 16, "sliding_window": 9, **changes})


def qwen2(**changes: Any) -> Any:
    from transformers import Qwen2Config

    return Qwen2Config(**{**SIZES, **changes})


def qwen3(**changes: Any) -> Any:
    from transformers import Qwen3Config

    return Qwen3Config(**{**SIZES, "head_dim": 32, **changes})


def gemma3(**changes: Any) -> Any:
    from transformers import Gemma3TextConfig

    layers = {"num_hidden_layers": 6, "layer_types": ["sliding_attention"] * 5 + ["full_attention"]}
    values = {**SIZES, **layers, "head_dim": 32, "sliding_window": 8, "query_pre_attn_scalar": 24, **changes}
    return Gemma3TextConfig(**values)


CONFIGS: dict[str, Any] = {
    "llama": lambda: llama_config(),
    "llama, tied": lambda: llama_config(tie_word_embeddings=True),
    "llama, wide heads": lambda: llama_config(head_dim=32),
    "llama, one kv head": lambda: llama_config(num_key_value_heads=1),
    "llama 3.1 rope": lambda: llama_config(rope_parameters=LLAMA3_ROPE),
    "llama, linear rope": lambda: llama_config(
        rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
    ),
    "mistral, windowed": mistral,
    "mistral, no window": lambda: mistral(sliding_window=None),
    "qwen2": qwen2,
    "qwen2, upper layers windowed": lambda: qwen2(use_sliding_window=True, sliding_window=7, max_window_layers=1),
    "qwen3": qwen3,
    "gemma3": gemma3,
    # transformers reads attn_logit_softcapping for Gemma 3 but never applies it, and no released model sets it.
    "gemma3, logit soft cap": lambda: gemma3(final_logit_softcapping=5.0),
}
