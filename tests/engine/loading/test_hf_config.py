"""config.json → spec: every family, the keys of transformers 4 and 5, defaults, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import transformers

from tandem.core.errors import ModelDamaged, ModelError, ModelUnsupported
from tandem.engine.loading.hf_config import read_spec
from tandem.engine.loading.values import Values
from tandem.engine.models.spec import Family, ModelSpec, RopeScaling

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}
LLAMA3_ROPE: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
GEMMA_4B: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "eos_token_id": [1, 106],
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
}
"""As it is on the hub: nearly everything is left to the defaults."""


def spec_of(**changes: Any) -> ModelSpec:
    return read_spec(Values(LLAMA | changes, "config.json"))


def test_llama() -> None:
    spec = spec_of(rope_theta=500_000.0, bos_token_id=7)
    assert spec == ModelSpec(
        family="llama",
        num_layers=4,
        hidden_size=32,
        intermediate_size=96,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        vocab_size=64,
        max_position=128,
        rms_norm_eps=1e-5,
        rope_theta=500_000.0,
        bos_token_id=7,
    )


def test_absent_and_null_values_take_the_defaults() -> None:
    spec = spec_of(num_key_value_heads=None, rms_norm_eps=None, max_position_embeddings=None, head_dim=None)
    assert (spec.num_kv_heads, spec.rms_norm_eps, spec.max_position, spec.head_dim) == (4, 1e-6, 2048, 8)
    assert (spec.rope_theta, spec.tie_embeddings) == (10_000.0, False)


@pytest.mark.parametrize("family", ["Llama", "Mistral", "Qwen2", "Qwen3", "Gemma3Text"])
def test_defaults_are_those_of_transformers(family: str) -> None:
    config = getattr(transformers, family + "Config")()
    name = family.removesuffix("Text") + "ForCausalLM"
    bare = {"architectures": [name], "num_hidden_layers": 7, "num_attention_heads": config.num_attention_heads}
    sizes = {key: getattr(config, key) for key in ("hidden_size", "intermediate_size", "vocab_size")}
    spec = read_spec(Values(bare | sizes, "config.json"))
    assert spec.max_position == config.max_position_embeddings
    assert spec.num_kv_heads == config.num_key_value_heads
    assert spec.head_dim == (getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    assert spec.rms_norm_eps == config.rms_norm_eps
    assert spec.tie_embeddings == config.tie_word_embeddings
    rope = config.rope_parameters
    assert spec.rope_theta == rope.get("full_attention", rope)["rope_theta"]
    assert spec.local_rope_theta == rope.get("sliding_attention", {}).get("rope_theta")
    windows = config.sliding_window if hasattr(config, "sliding_window") else None
    assert max(spec.layer_windows or (0,), key=lambda window: window or 0) == (windows or 0)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 5e5, "rope_scaling": LLAMA3_ROPE},
        {"rope_parameters": LLAMA3_ROPE | {"rope_theta": 5e5}},
        {"rope_theta": 5e5, "rope_parameters": LLAMA3_ROPE},
    ],
)
def test_llama3_scaling_in_both_spellings(rope: dict[str, Any]) -> None:
    spec = spec_of(**rope)
    assert spec.rope_theta == 5e5
    assert spec.rope_scaling == RopeScaling(kind="llama3", factor=8.0)


def test_linear_and_default_scaling() -> None:
    assert spec_of(rope_scaling={"type": "linear", "factor": 2}).rope_scaling == RopeScaling(kind="linear", factor=2.0)
    assert spec_of(rope_scaling={"rope_type": "default"}).rope_scaling is None
    assert spec_of(rope_scaling=None).rope_scaling is None


@pytest.mark.parametrize(
    ("name", "settings", "windows"),
    [
        ("Mistral", {"sliding_window": 16}, (16,) * 4),
        ("Mistral", {"sliding_window": None}, ()),
        ("Mistral", {}, (4096,) * 4),
        ("Llama", {"sliding_window": 16}, ()),
        ("Qwen2", {"sliding_window": 16, "max_window_layers": 1}, ()),
        ("Qwen2", {"sliding_window": 16, "max_window_layers": 1, "use_sliding_window": True}, (None, 16, 16, 16)),
        ("Qwen3", {"sliding_window": 16, "max_window_layers": 4, "use_sliding_window": True}, ()),
        (
            "Qwen3",
            {
                "sliding_window": 16,
                "use_sliding_window": True,
                "layer_types": ["full_attention", "sliding_attention"] * 2,
            },
            (None, 16, None, 16),
        ),
        ("Gemma3", {"sliding_window": 16, "sliding_window_pattern": 2}, (16, None, 16, None)),
        ("Gemma3", {"sliding_window": 16}, (16,) * 4),
    ],
)
def test_windows(name: str, settings: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    assert spec_of(architectures=[f"{name}ForCausalLM"], **settings).layer_windows == windows


def test_family_traits() -> None:
    qwen2, qwen3 = (spec_of(architectures=[f"Qwen{n}ForCausalLM"]) for n in (2, 3))
    assert (qwen2.qkv_bias, qwen2.qk_norm, qwen3.qkv_bias, qwen3.qk_norm) == (True, False, False, True)
    assert qwen3.head_dim == 128
    settings = {"query_pre_attn_scalar": 16, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0}
    gemma = spec_of(architectures=["Gemma3ForCausalLM"], hidden_size=64, **settings)
    assert (gemma.qk_norm, gemma.post_norms, gemma.norm_plus_one, gemma.activation) == (True, True, True, "gelu_tanh")
    assert (gemma.attention_scale, gemma.embedding_scale) == (0.25, 8.0)
    assert (gemma.logit_soft_cap, gemma.attention_soft_cap) == (30.0, 50.0)


def test_gemma3_that_sees_pictures_as_on_the_hub() -> None:
    spec = read_spec(Values(GEMMA_4B, "config.json"))
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.vocab_size) == (8, 4, 256, 262_208)
    assert (spec.rope_theta, spec.local_rope_theta) == (1e6, 1e4)
    assert spec.rope_scaling == RopeScaling(kind="linear", factor=8.0)
    assert spec.layer_windows[:7] == (1024, 1024, 1024, 1024, 1024, None, 1024)
    assert (spec.tie_embeddings, spec.max_position) == (True, 131_072)


@pytest.mark.parametrize("parameters", [True, False])
def test_gemma3_rope_by_kind_of_layer(parameters: bool) -> None:
    new = {
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 3e4},
        }
    }
    old = {"rope_theta": 2e6, "rope_local_base_freq": 3e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    spec = spec_of(architectures=["Gemma3ForCausalLM"], **(new if parameters else old))
    assert (spec.rope_theta, spec.local_rope_theta) == (2e6, 3e4)
    assert spec.rope_scaling == RopeScaling(kind="linear", factor=8.0)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "gemma3"])
def test_what_transformers_5_writes(family: Family) -> None:
    from tests.engine.loading.tiny_models import SIZES, tiny_model

    config = tiny_model(family).config
    written = config.to_diff_dict() | {"architectures": [family.capitalize() + "ForCausalLM"]}
    spec = read_spec(Values(written, "config.json"))
    assert spec.family == family
    assert (spec.hidden_size, spec.head_dim, spec.num_kv_heads) == (32, SIZES["head_dim"], 2)
    kinds = getattr(config, "layer_types", None) or []
    if family == "gemma3":
        assert [window is not None for window in spec.layer_windows] == [kind == "sliding_attention" for kind in kinds]


@pytest.mark.parametrize(
    ("changes", "kind", "pattern"),
    [
        ({"architectures": ["MambaForCausalLM"]}, ModelUnsupported, "architecture MambaForCausalLM isn't supported"),
        ({"architectures": None, "model_type": "opt"}, ModelUnsupported, "architecture opt isn't supported"),
        ({"architectures": "Llama"}, ModelUnsupported, "architecture not named isn't supported"),
        ({"attention_bias": True}, ModelUnsupported, "attention_bias isn't supported"),
        ({"mlp_bias": True}, ModelUnsupported, "mlp_bias isn't supported"),
        ({"partial_rotary_factor": 0.5}, ModelUnsupported, "partial_rotary_factor"),
        ({"hidden_act": "relu"}, ModelUnsupported, "activation relu isn't supported"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, ModelUnsupported, "rope type yarn isn't supported"),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, ModelUnsupported, "rope type dynamic"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, ModelDamaged, "low_freq_factor is missing"),
        ({"rope_scaling": [1]}, ModelDamaged, r"rope_scaling is \[1\]; it must be a mapping"),
        ({"hidden_size": None}, ModelDamaged, "hidden_size is missing"),
        ({"hidden_size": "big"}, ModelDamaged, "hidden_size is 'big'"),
        ({"hidden_size": True}, ModelDamaged, "hidden_size is True"),
        ({"num_hidden_layers": 0}, ModelDamaged, "num_hidden_layers is 0"),
        ({"num_key_value_heads": 3}, ModelDamaged, "4 attention heads can't share 3 KV heads"),
        ({"head_dim": 7}, ModelDamaged, "head size is 7"),
        ({"rms_norm_eps": 0}, ModelDamaged, "rms_norm_eps is 0"),
        ({"tie_word_embeddings": "yes"}, ModelDamaged, "tie_word_embeddings is 'yes'; it must be true or false"),
        (
            {"architectures": ["Gemma3ForCausalLM"], "layer_types": ["full_attention"] * 3},
            ModelUnsupported,
            "for each of the 4 layers",
        ),
        (
            {"architectures": ["Gemma3ForCausalLM"], "layer_types": ["chunked_attention"] * 4},
            ModelUnsupported,
            "layer_types must say",
        ),
        (
            {"architectures": ["Gemma3ForCausalLM"], "use_bidirectional_attention": True},
            ModelUnsupported,
            "bidirectional",
        ),
        (
            {
                "architectures": ["Gemma3ForCausalLM"],
                "rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}},
            },
            ModelUnsupported,
            "windowed layers",
        ),
    ],
)
def test_refusals_name_the_key(changes: dict[str, Any], kind: type[ModelError], pattern: str) -> None:
    with pytest.raises(kind, match=pattern) as caught:
        spec_of(**changes)
    assert "config.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_qwen2_has_its_bias_whatever_attention_bias_says() -> None:
    assert spec_of(architectures=["Qwen2ForCausalLM"], attention_bias=True).qkv_bias
