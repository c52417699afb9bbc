"""config.json of a Hugging Face folder → `ModelSpec`. Reads no weights and no tokenizer.

config.json leaves out what equals the defaults of transformers' configuration class, so these defaults are repeated
here, by family. Version 5 renamed some keys; both spellings are read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tandem.core.errors import ModelUnsupported
from tandem.engine.loading import rope_scaling
from tandem.engine.loading.expected import check_heads
from tandem.engine.loading.values import Values
from tandem.engine.models.spec import Activation, Family, ModelSpec, RopeScaling

ARCHITECTURES: dict[str, Family] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma3ForCausalLM": "gemma3",
    "Gemma3ForConditionalGeneration": "gemma3",
}
"""The class in config.json → family. The last one sees pictures too; its text half is what is served."""

ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
SLIDING, FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a value is where config.json is silent. None: the key must be there."""

    max_position: int
    rope_theta: float = 10_000.0
    num_heads: int | None = None
    num_kv_heads: int | None = None
    """None: as many as heads."""
    head_dim: int | None = None
    """None: hidden size by heads."""
    vocab_size: int | None = None
    window: int | None = None
    activation: str = "silu"
    tie_embeddings: bool = False


DEFAULTS: dict[Family, Defaults] = {
    "llama": Defaults(max_position=2048),
    "mistral": Defaults(max_position=131_072, num_kv_heads=8, window=4096),
    "qwen2": Defaults(max_position=32_768, num_kv_heads=32, window=4096),
    "qwen3": Defaults(max_position=32_768, num_kv_heads=32, head_dim=128, window=4096),
    "gemma3": Defaults(
        max_position=131_072,
        rope_theta=1_000_000.0,
        num_heads=8,
        num_kv_heads=4,
        head_dim=256,
        vocab_size=262_208,
        window=4096,
        activation="gelu_pytorch_tanh",
        tie_embeddings=True,
    ),
}


def read_spec(config: Values) -> ModelSpec:
    """The spec but for the end tokens, which other files know of too. Raises `ModelUnsupported` and `ModelDamaged`."""
    family = _family(config)
    text = text_config(config)
    _refuse_variants(text, family)
    defaults = DEFAULTS[family]
    hidden_size, num_layers = text.integer("hidden_size"), text.integer("num_hidden_layers")
    num_heads = text.integer("num_attention_heads", defaults.num_heads)
    num_kv_heads = text.integer("num_key_value_heads", defaults.num_kv_heads or num_heads)
    head_dim = text.integer("head_dim", defaults.head_dim or max(1, hidden_size // num_heads))
    check_heads(num_heads, num_kv_heads, head_dim, text.source)
    theta, scaling = _rope(text, defaults)
    return ModelSpec(
        family=family,
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=text.integer("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=text.integer("vocab_size", defaults.vocab_size),
        max_position=text.integer("max_position_embeddings", defaults.max_position),
        rms_norm_eps=text.number("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        activation=_activation(text, defaults),
        tie_embeddings=text.flag("tie_word_embeddings", config.flag("tie_word_embeddings", defaults.tie_embeddings)),
        qkv_bias=family == "qwen2",
        layer_windows=_layer_windows(text, family, num_layers, defaults.window),
        bos_token_id=text.optional_integer("bos_token_id", minimum=0),
        **_family_settings(text, family, hidden_size, head_dim),
    )


def text_config(config: Values) -> Values:
    """The part about the language model: a section of its own in models that also see."""
    return config.section("text_config") if "text_config" in config else config


def _family(config: Values) -> Family:
    named: Any = config.get("architectures")
    name = named[0] if isinstance(named, list) and named else config.text("model_type", "not named")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise ModelUnsupported(
            f"{config.source}: architecture {name} isn't supported; these are: {', '.join(ARCHITECTURES)}."
        )
    return ARCHITECTURES[name]


def _refuse_variants(text: Values, family: Family) -> None:
    """Settings that add weights or change the arithmetic in ways that `ModelSpec` can't say."""
    for key in ("attention_bias", "mlp_bias", "use_bidirectional_attention"):
        if text.flag(key) and family != "qwen2":  # which has a bias in q, k and v whatever its configuration says
            raise ModelUnsupported(f"{text.source}: {key} isn't supported.")
    if text.number("partial_rotary_factor", 1.0) != 1.0:
        raise ModelUnsupported(f"{text.source}: partial_rotary_factor isn't supported; heads are rotated whole.")


def _activation(text: Values, defaults: Defaults) -> Activation:
    name = text.text("hidden_activation", text.text("hidden_act", defaults.activation))
    if name not in ACTIVATIONS:
        raise ModelUnsupported(f"{text.source}: activation {name} isn't supported; {', '.join(ACTIVATIONS)} are.")
    return ACTIVATIONS[name]


def _rope(text: Values, defaults: Defaults) -> tuple[float, RopeScaling | None]:
    """Base frequency and scaling of layers that see the whole context."""
    rope = rope_section(text, FULL)
    theta = rope.number("rope_theta", text.number("rope_theta", defaults.rope_theta))
    return theta, rope_scaling.from_config(rope)


def rope_section(text: Values, layer_type: str) -> Values:
    """transformers 5 has `rope_parameters`, in Gemma by kind of layer; 4 has `rope_scaling`, for full layers only."""
    if "rope_parameters" in text:
        rope = text.section("rope_parameters")
        return rope.section(layer_type) if {FULL, SLIDING} & rope.raw.keys() else rope
    return text.section("rope_scaling") if layer_type == FULL else Values({}, text.source)


def _layer_windows(text: Values, family: Family, num_layers: int, default: int | None) -> tuple[int | None, ...]:
    window = _window(text, family, default)
    if window is None:
        return ()
    kinds = _layer_types(text, family, num_layers)
    unknown = set(kinds) - {SLIDING, FULL}
    if unknown or len(kinds) != num_layers:
        raise ModelUnsupported(
            f"{text.source}: layer_types must say {SLIDING} or {FULL} for each of the {num_layers} layers."
        )
    windows = tuple(window if kind == SLIDING else None for kind in kinds)
    return windows if any(windows) else ()


def _window(text: Values, family: Family, default: int | None) -> int | None:
    if family == "llama" or (family in ("qwen2", "qwen3") and not text.flag("use_sliding_window")):
        return None
    # An explicit null means none; only an absent key means the default.
    return text.optional_integer("sliding_window") if "sliding_window" in text.raw else default


def _layer_types(text: Values, family: Family, num_layers: int) -> list[Any]:
    listed: Any = text.get("layer_types")
    if family == "mistral":
        return [SLIDING] * num_layers
    if isinstance(listed, list):
        return listed
    if family == "gemma3":
        pattern = text.integer("sliding_window_pattern", 6)
        return [SLIDING if (layer + 1) % pattern else FULL for layer in range(num_layers)]
    first = text.integer("max_window_layers", 28, minimum=0)
    return [SLIDING if layer >= first else FULL for layer in range(num_layers)]


def _family_settings(text: Values, family: Family, hidden_size: int, head_dim: int) -> dict[str, Any]:
    if family != "gemma3":
        return {"qk_norm": family == "qwen3"}
    local = rope_section(text, SLIDING)
    if rope_scaling.from_config(local) is not None:
        raise ModelUnsupported(f"{text.source}: scaled rotary frequencies in windowed layers aren't supported.")
    return {
        "qk_norm": True,
        "post_norms": True,
        "norm_plus_one": True,
        "attention_scale": text.number("query_pre_attn_scalar", 256.0) ** -0.5,
        "attention_soft_cap": text.optional_number("attn_logit_softcapping"),
        "logit_soft_cap": text.optional_number("final_logit_softcapping"),
        "embedding_scale": math.sqrt(hidden_size),
        "local_rope_theta": local.number("rope_theta", text.number("rope_local_base_freq", 10_000.0)),
    }
