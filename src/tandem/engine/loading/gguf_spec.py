"""GGUF metadata → `ModelSpec`. Reads no weights but the rotary divisors, and checks no tensor shapes.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#standardized-key-value-pairs.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tandem.core.errors import ModelDamaged, ModelUnsupported
from tandem.engine.loading import rope_scaling
from tandem.engine.loading.expected import check_heads
from tandem.engine.loading.gguf import GGUFFile
from tandem.engine.loading.gguf_dequant import dequantise
from tandem.engine.loading.gguf_names import ROPE_DIVISORS
from tandem.engine.loading.values import Values
from tandem.engine.models.spec import Family, ModelSpec, RopeScaling

FAMILIES: dict[str, Family] = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3"}
"""`general.architecture` → family. Mistral's files say llama: the networks are the same."""

GEMMA_WINDOW_PATTERN = 6
"""In Gemma 3 every sixth layer sees the whole context; the file doesn't say so."""
GEMMA_LOCAL_THETA = 10_000.0
GEMMA_27B_LAYERS = 62
CONTROL, USER_DEFINED = 3, 4
"""Numbers in `tokenizer.ggml.token_type`. Converters mark end tokens as either."""

END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
END_TOKENS: dict[Family, tuple[str, ...]] = {
    "llama": ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|im_end|>"),
    "qwen2": ("<|im_end|>", "<|endoftext|>"),
    "qwen3": ("<|im_end|>", "<|endoftext|>"),
    "gemma3": ("<eos>", "<end_of_turn>"),
}
"""Tokens that end a generation even where the file names another one: many files name a single end token, but the
original model has several."""


def read_spec(file: GGUFFile) -> ModelSpec:
    """Raises `ModelUnsupported` for a network that Tandem doesn't have, `ModelDamaged` for values that can't be."""
    metadata = Values(file.metadata, str(file.path))
    family = _family(metadata)
    _refuse_variants(metadata, family)
    num_layers = _num_layers(metadata, family, file)
    hidden_size = metadata.integer(f"{family}.embedding_length")
    num_heads = metadata.integer(f"{family}.attention.head_count")
    head_dim = _head_dim(metadata, family, hidden_size, num_heads)
    theta = metadata.number(f"{family}.rope.freq_base", 10_000.0)
    vocab_size = _vocab_size(metadata, family, file)
    return ModelSpec(
        family=family,
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=metadata.integer(f"{family}.feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(metadata, family, num_heads, head_dim),
        head_dim=head_dim,
        vocab_size=vocab_size,
        max_position=metadata.integer(f"{family}.context_length"),
        rms_norm_eps=metadata.number(f"{family}.attention.layer_norm_rms_epsilon"),
        rope_theta=theta,
        rope_scaling=_rope_scaling(metadata, family, file, theta, head_dim),
        tie_embeddings="output.weight" not in file.tensors,
        qkv_bias=family == "qwen2",
        bos_token_id=metadata.optional_integer("tokenizer.ggml.bos_token_id", minimum=0),
        eos_token_ids=_end_tokens(metadata, family, file, vocab_size),
        **_family_settings(metadata, family, num_layers, hidden_size, num_heads),
    )


def _family(metadata: Values) -> Family:
    architecture = metadata.text("general.architecture")
    if architecture not in FAMILIES:
        allowed = ", ".join(FAMILIES)
        raise ModelUnsupported(f"{metadata.source}: architecture {architecture} isn't supported; {allowed} are.")
    return FAMILIES[architecture]


def _refuse_variants(metadata: Values, family: Family) -> None:
    if metadata.integer("split.count", 1, minimum=0) > 1:
        raise ModelUnsupported(f"{metadata.source} is one part of several; join them first (llama-gguf-split --merge).")
    if metadata.integer(f"{family}.expert_count", 0, minimum=0):
        raise ModelUnsupported(f"{metadata.source}: mixtures of experts aren't supported ({family}.expert_count).")


def _num_layers(metadata: Values, family: Family, file: GGUFFile) -> int:
    """Bounded by the file's tensors, so that a wrong number costs no memory."""
    key = f"{family}.block_count"
    num_layers = metadata.integer(key)
    if num_layers > len(file.tensors):
        raise ModelDamaged(
            f"{metadata.source}: {key} is {num_layers}, but the file has only {len(file.tensors)} tensors."
        )
    return num_layers


def _num_kv_heads(metadata: Values, family: Family, num_heads: int, head_dim: int) -> int:
    num_kv_heads = metadata.integer(f"{family}.attention.head_count_kv", num_heads)
    check_heads(num_heads, num_kv_heads, head_dim, metadata.source)
    return num_kv_heads


def _head_dim(metadata: Values, family: Family, hidden_size: int, num_heads: int) -> int:
    head_dim = metadata.integer(f"{family}.attention.key_length", max(1, hidden_size // num_heads))
    for key in (f"{family}.attention.value_length", f"{family}.rope.dimension_count"):
        size = metadata.integer(key, head_dim)
        if size != head_dim:
            raise ModelUnsupported(
                f"{metadata.source}: {key} is {size}; only heads of one size, {head_dim}, are supported."
            )
    return head_dim


def _vocab_size(metadata: Values, family: Family, file: GGUFFile) -> int:
    """Rows of the embedding, which the token list must equal: a token without a row would read foreign memory."""
    if "token_embd.weight" not in file.tensors:
        raise ModelDamaged(f"{metadata.source}: tensor token_embd.weight is missing.")
    rows = file.tensors["token_embd.weight"].shape[0]
    tokens: Any = metadata.get("tokenizer.ggml.tokens")
    if tokens is not None and len(tokens) != rows:
        raise ModelDamaged(f"{metadata.source}: {len(tokens)} tokens, but token_embd.weight has {rows} rows.")
    return rows


def _rope_scaling(metadata: Values, family: Family, file: GGUFFile, theta: float, head_dim: int) -> RopeScaling | None:
    if ROPE_DIVISORS not in file.tensors:
        return rope_scaling.from_metadata(metadata, family)
    tensor = file.tensors[ROPE_DIVISORS]
    if tensor.shape != (head_dim // 2,):
        raise ModelDamaged(
            f"{metadata.source}: tensor {ROPE_DIVISORS} has shape {list(tensor.shape)}; it must be [{head_dim // 2}]."
        )
    divisors = dequantise(file.blocks(ROPE_DIVISORS), tensor.type).reshape(-1)
    original = metadata.integer(f"{family}.rope.scaling.original_context_length", 8192)
    return rope_scaling.from_divisors(divisors, theta, original, metadata.source)


def _family_settings(
    metadata: Values, family: Family, num_layers: int, hidden_size: int, num_heads: int
) -> dict[str, Any]:
    """Fields in which the families differ. Gemma's norms keep `norm_plus_one` False: GGUF's weights include the one."""
    if family != "gemma3":
        window = metadata.integer(f"{family}.attention.sliding_window", 0, minimum=0)
        return {"qk_norm": family == "qwen3", "layer_windows": (window,) * num_layers if window else ()}
    window = metadata.integer("gemma3.attention.sliding_window")
    is_27b = num_layers == GEMMA_27B_LAYERS
    return {
        "activation": "gelu_tanh",
        "qk_norm": True,
        "post_norms": True,
        "attention_scale": (hidden_size / num_heads) ** -0.5 if is_27b else None,
        "logit_soft_cap": metadata.optional_number("gemma3.final_logit_softcapping"),
        "embedding_scale": math.sqrt(hidden_size),
        "local_rope_theta": metadata.number("gemma3.rope.freq_base_swa", GEMMA_LOCAL_THETA),
        "layer_windows": tuple(None if (i + 1) % GEMMA_WINDOW_PATTERN == 0 else window for i in range(num_layers)),
    }


def _end_tokens(metadata: Values, family: Family, file: GGUFFile, vocab_size: int) -> tuple[int, ...]:
    named = (metadata.optional_integer(f"tokenizer.ggml.{key}", minimum=0) for key in END_KEYS)
    ids = [token for token in named if token is not None and token < vocab_size]
    tokens: Any = metadata.get("tokenizer.ggml.tokens")
    kinds: Any = metadata.get("tokenizer.ggml.token_type")
    if tokens is not None and kinds is not None:
        _check_token_types(kinds, len(tokens), file)
        ids += [
            int(i)
            for i in np.flatnonzero((kinds == CONTROL) | (kinds == USER_DEFINED))
            if tokens[i] in END_TOKENS[family]
        ]
    return tuple(dict.fromkeys(ids))


def _check_token_types(kinds: Any, num_tokens: int, file: GGUFFile) -> None:
    key = "tokenizer.ggml.token_type"
    if file.stored_as[key] not in ("int32[]", "uint32[]"):
        raise ModelDamaged(f"{file.path}: {key} is stored as {file.stored_as[key]}; it must be int32[].")
    if len(kinds) != num_tokens:
        raise ModelDamaged(f"{file.path}: {key} has {len(kinds)} entries for {num_tokens} tokens.")
