"""Tiny random models made by transformers, as folders, and the same ones as GGUF files made with the `gguf` package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from tandem.engine.loading.gguf_names import gguf_name
from tandem.engine.models.spec import Family

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
FAMILIES: dict[Family, str] = {
    "llama": "Llama",
    "mistral": "Mistral",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "gemma3": "Gemma3Text",
}
"""Family → how transformers begins the name of its configuration."""


def tiny_model(family: Family, **settings: Any) -> Any:
    """A random network; its norms and biases are random too, so that a mix-up shows."""
    config = getattr(transformers, FAMILIES[family] + "Config")(**(SIZES | settings))
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model


def save_folder(folder: Path, family: Family, **settings: Any) -> Any:
    model = tiny_model(family, **settings)
    model.save_pretrained(folder)
    return model


def save_gguf(path: Path, family: Family, model: Any, quantize: dict[str, str] | None = None) -> Path:
    """As llama.cpp converts it: rows of llama's q and k interleaved, one added to Gemma's norms.

    `quantize`: ending of a GGUF tensor name → type; float32 for the rest.
    """
    architecture: Family = "llama" if family == "mistral" else family
    writer = gguf.GGUFWriter(path, architecture)
    _add_settings(writer, architecture, model.config)
    for name, parameter in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        stored = gguf_name(name, architecture)
        weights = _converted(name, parameter.float().numpy(), architecture, model.config)
        _add_tensor(writer, stored, weights, quantize or {})
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_settings(writer: Any, architecture: str, config: Any) -> None:
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    if architecture == "gemma3":
        writer.add_sliding_window(config.sliding_window)
    writer.add_token_list([f"<{number}>" for number in range(config.vocab_size)])
    writer.add_token_types([1] * config.vocab_size)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def _converted(name: str, weights: NDArray[Any], architecture: str, config: Any) -> NDArray[Any]:
    if architecture == "gemma3" and name.endswith("norm.weight"):
        return weights + 1
    if architecture == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
        num_heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
        halves = weights.reshape(num_heads, 2, -1, weights.shape[1])
        return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(weights.shape)
    return weights


def _add_tensor(writer: Any, name: str, weights: NDArray[Any], quantize: dict[str, str]) -> None:
    for ending, kind in quantize.items():
        if name.endswith(ending):
            number = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(name, gguf.quants.quantize(weights, number), raw_dtype=number)
            return
    writer.add_tensor(name, weights)
