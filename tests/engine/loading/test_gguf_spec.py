"""What a GGUF's metadata says about Gemma's attention and about rotary scaling."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tandem.core.errors import ModelDamaged, ModelUnsupported
from tandem.engine.loading.gguf import read_gguf
from tandem.engine.loading.gguf_spec import read_spec
from tandem.engine.loading.rope_scaling import llama3_divisors
from tandem.engine.models.spec import ModelSpec, RopeScaling
from tests.engine.loading.gguf_builder import F32, FLOAT32, STRING, UINT32, GGUFBuilder


def builder(architecture: str, **keys: int) -> GGUFBuilder:
    """A file of 62 tensors, of which the spec needs only the embedding."""
    made = GGUFBuilder().key("general.architecture", STRING, architecture)
    numbers = {
        "block_count": 2,
        "embedding_length": 16,
        "feed_forward_length": 32,
        "attention.head_count": 2,
        "attention.head_count_kv": 1,
        "context_length": 64,
    }
    for key, number in (numbers | keys).items():
        made.key(f"{architecture}.{key}", UINT32, number)
    made.key(f"{architecture}.attention.layer_norm_rms_epsilon", FLOAT32, 1e-6)
    made.tensor("token_embd.weight", [16, 8], F32, bytes(512))
    for number in range(61):
        made.floats(f"t{number}", [0.0])
    return made


def spec_of(made: GGUFBuilder, folder: Path) -> ModelSpec:
    return read_spec(read_gguf(made.write(folder / "x.gguf")))


def test_gemma3(tmp_path: Path) -> None:
    keys = {"attention.sliding_window": 4, "attention.key_length": 32, "block_count": 7}
    made = builder("gemma3", **keys).key("gemma3.rope.freq_base", FLOAT32, 1e6)
    made.key("gemma3.rope.scaling.type", STRING, "linear").key("gemma3.rope.scaling.factor", FLOAT32, 8.0)
    spec = spec_of(made, tmp_path)
    assert spec.layer_windows == (4, 4, 4, 4, 4, None, 4)
    assert (spec.rope_theta, spec.local_rope_theta) == (1e6, 1e4)
    assert spec.rope_scaling == RopeScaling(kind="linear", factor=8.0)
    assert (spec.embedding_scale, spec.head_dim, spec.attention_scale, spec.norm_plus_one) == (4.0, 32, None, False)
    assert (spec.activation, spec.qk_norm, spec.post_norms) == ("gelu_tanh", True, True)


def test_gemma3_27b_scales_by_hidden_size_over_heads(tmp_path: Path) -> None:
    keys = {"attention.sliding_window": 4, "attention.key_length": 32, "block_count": 62}
    assert spec_of(builder("gemma3", **keys), tmp_path).attention_scale == 8**-0.5


def test_gemma3_without_window(tmp_path: Path) -> None:
    with pytest.raises(ModelDamaged, match=r"gemma3\.attention\.sliding_window is missing"):
        spec_of(builder("gemma3"), tmp_path)


def test_linear_scaling_as_files_of_2023_say_it(tmp_path: Path) -> None:
    made = builder("llama").key("llama.rope.scale_linear", FLOAT32, 4.0)
    assert spec_of(made, tmp_path).rope_scaling == RopeScaling(kind="linear", factor=4.0)


def with_divisors(head_dim: int, divisors: list[float]) -> GGUFBuilder:
    made = builder("llama", **{"attention.key_length": head_dim, "attention.value_length": head_dim})
    made.key("llama.rope.freq_base", FLOAT32, 500_000.0)
    return made.tensor("rope_freqs.weight", [len(divisors)], F32, struct.pack(f"<{len(divisors)}f", *divisors))


@pytest.mark.parametrize(("head_dim", "factor"), [(128, 8.0), (64, 32.0)])
def test_llama3_scaling_is_found_again(tmp_path: Path, head_dim: int, factor: float) -> None:
    wanted = RopeScaling(kind="llama3", factor=factor)
    divisors = llama3_divisors(wanted, 500_000.0, head_dim).tolist()
    assert spec_of(with_divisors(head_dim, divisors), tmp_path).rope_scaling == wanted


def test_divisors_of_another_kind(tmp_path: Path) -> None:
    assert spec_of(with_divisors(64, [1.0] * 32), tmp_path).rope_scaling is None
    for odd in (0.0, float("nan"), float("inf"), 7.0):
        with pytest.raises(ModelUnsupported, match=r"rope_freqs\.weight aren't those of Llama 3\.1"):
            spec_of(with_divisors(64, [1.0] * 31 + [odd]), tmp_path)
    with pytest.raises(ModelDamaged, match=r"rope_freqs\.weight has shape \[31\]; it must be \[32\]"):
        spec_of(with_divisors(64, [1.0] * 31), tmp_path)


def test_divisors_equal_those_of_transformers() -> None:
    import torch
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = LlamaConfig(hidden_size=256, num_attention_heads=2, head_dim=128, rope_parameters=rope)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 500_000.0 ** (-torch.arange(0, 128, 2) / 128)
    found = llama3_divisors(RopeScaling(kind="llama3", factor=8.0), 500_000.0, 128)
    assert found == pytest.approx((plain / scaled).numpy(), rel=1e-4)
