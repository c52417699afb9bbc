"""GGUF files as checkpoints: equal to the Hugging Face folder they came from, and checked in every shape."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from tandem.core.errors import ModelDamaged, ModelError, ModelUnsupported
from tandem.engine.loading.folder import FolderCheckpoint
from tandem.engine.loading.gguf import read_gguf
from tandem.engine.loading.gguf_checkpoint import GGUFCheckpoint
from tandem.engine.models.spec import Family
from tests.engine.loading.tiny_models import save_folder, save_gguf, tiny_model


def tensors(checkpoint: FolderCheckpoint | GGUFCheckpoint) -> dict[str, torch.Tensor]:
    return {name: checkpoint.read(name, torch.float32) for name in checkpoint.names()}


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "gemma3"])
def test_equal_to_the_folder_it_was_converted_from(tmp_path: Path, family: Family, tie: bool) -> None:
    settings: dict[str, dict[str, Any]] = {
        "mistral": {"sliding_window": None},
        "gemma3": {"sliding_window": 16, "query_pre_attn_scalar": 8},
    }
    model = save_folder(tmp_path, family, tie_word_embeddings=tie, **settings.get(family, {}))
    folder = FolderCheckpoint(tmp_path)
    file = GGUFCheckpoint(save_gguf(tmp_path / "x.gguf", family, model))
    assert file.names() == folder.names()
    assert ("lm_head.weight" in file.names()) is not tie
    plus = 1.0 if family == "gemma3" else 0.0  # case gg-02
    for name, weights in tensors(folder).items():
        wanted = weights + plus if name.endswith("norm.weight") else weights
        assert torch.equal(file.read(name, torch.float32), wanted), name
        assert file.shape(name) == tuple(weights.shape)
    same = dataclasses.replace(folder.spec, family=file.spec.family, norm_plus_one=False)
    if family == "gemma3":
        same = dataclasses.replace(same, attention_scale=None)
    assert dataclasses.replace(file.spec, rms_norm_eps=same.rms_norm_eps) == same
    assert file.spec.rms_norm_eps == pytest.approx(same.rms_norm_eps)


def test_every_tensor_by_its_own_type(tmp_path: Path) -> None:
    """Case q-01: a file of mixed types; and llama's rows are reordered before they are dequantised."""
    model = tiny_model("llama")
    types = {"attn_q.weight": "Q8_0", "attn_k.weight": "Q5_0", "ffn_up.weight": "Q4_1", "ffn_down.weight": "F16"}
    file = GGUFCheckpoint(save_gguf(tmp_path / "x.gguf", "llama", model, types))
    for name, weights in model.state_dict().items():
        found = file.read(name, torch.float32)
        assert torch.cosine_similarity(found.flatten(), weights.flatten(), dim=0) > 0.99, name


def test_reading_gives_own_memory_in_the_type_asked_for(tmp_path: Path) -> None:
    file = GGUFCheckpoint(save_gguf(tmp_path / "x.gguf", "llama", tiny_model("llama")))
    first = file.read("model.norm.weight", torch.bfloat16)
    wanted = first.clone()
    first.zero_()
    assert first.dtype == torch.bfloat16
    assert torch.equal(file.read("model.norm.weight", torch.bfloat16), wanted)


class Writer:
    """A tiny llama file, of which single keys and tensors can be changed."""

    def __init__(self, folder: Path) -> None:
        self.file = read_gguf(save_gguf(folder / "good.gguf", "llama", tiny_model("llama")))
        self.keys: dict[str, Any] = dict(self.file.metadata)
        self.kinds: dict[str, Any] = {}
        self.tensors = {
            name: np.frombuffer(self.file.raw(name), "<f4").reshape(t.shape) for name, t in self.file.tensors.items()
        }
        self.path = folder / "changed.gguf"

    def open(self) -> GGUFCheckpoint:
        writer = gguf.GGUFWriter(self.path, self.keys.pop("general.architecture"))
        for key, value in self.keys.items():
            self._add(writer, key, value)
        for name, weights in self.tensors.items():
            writer.add_tensor(name, weights)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return GGUFCheckpoint(self.path)

    def _add(self, writer: Any, key: str, value: Any) -> None:
        if isinstance(value, list | np.ndarray):
            value, kind = list(value), gguf.GGUFValueType.ARRAY
            sub = gguf.GGUFValueType.STRING if isinstance(value[0], str) else gguf.GGUFValueType.INT32
            writer.add_key_value(
                key, [v if isinstance(v, str) else int(v) for v in value], kind, self.kinds.get(key, sub)
            )
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_uint32(key, value)


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer(tmp_path)


@pytest.mark.parametrize(
    ("changes", "kind", "pattern"),
    [
        ({"general.architecture": "mamba"}, ModelUnsupported, "architecture mamba isn't supported; llama, qwen2"),
        ({"llama.block_count": 100_000}, ModelDamaged, "block_count is 100000, but the file has only 21 tensors"),
        ({"llama.block_count": 0}, ModelDamaged, "block_count is 0; it must be a whole number of at least 1"),
        ({"llama.block_count": "two"}, ModelDamaged, "block_count is 'two'"),
        ({"llama.block_count": None}, ModelDamaged, "llama.block_count is missing"),
        ({"llama.block_count": 3}, ModelDamaged, r"tensor blk\.2\.attn_q\.weight is missing"),
        ({"llama.block_count": 1}, ModelUnsupported, r"tensor blk\.1\..* isn't part of the llama network"),
        ({"llama.attention.head_count": 3}, ModelDamaged, "3 attention heads can't share 2 KV heads"),
        (
            {"llama.attention.head_count": 8},
            ModelDamaged,
            r"blk\.0\.attn_q\.weight has shape \[32, 32\]; it should have \[64, 32\]",
        ),
        (
            {"llama.embedding_length": 48},
            ModelDamaged,
            r"token_embd.weight has shape \[64, 32\]; it should have \[64, 48\]",
        ),
        ({"llama.attention.key_length": 7, "llama.attention.value_length": 7}, ModelDamaged, "head size is 7"),
        ({"llama.attention.value_length": 4}, ModelUnsupported, "value_length is 4"),
        ({"llama.rope.dimension_count": 4}, ModelUnsupported, "rope.dimension_count is 4"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, ModelDamaged, "epsilon is nan"),
        ({"llama.rope.freq_base": -1.0}, ModelDamaged, "freq_base is -1.0"),
        ({"llama.rope.scaling.type": "yarn"}, ModelUnsupported, "rope.scaling.type yarn isn't supported"),
        ({"llama.expert_count": 8}, ModelUnsupported, "mixtures of experts"),
        ({"split.count": 3}, ModelUnsupported, "one part of several"),
        ({"tokenizer.ggml.tokens": ["a"] * 63}, ModelDamaged, "63 tokens, but token_embd.weight has 64 rows"),
        ({"tokenizer.ggml.token_type": [1] * 63}, ModelDamaged, "token_type has 63 entries for 64 tokens"),
    ],
)
def test_wrong_metadata(writer: Writer, changes: dict[str, Any], kind: type[ModelError], pattern: str) -> None:
    writer.keys |= changes
    writer.keys = {key: value for key, value in writer.keys.items() if value is not None}
    with pytest.raises(kind, match=pattern) as caught:
        writer.open()
    assert "\n" not in str(caught.value)


def test_token_types_of_the_wrong_size(writer: Writer) -> None:
    writer.kinds["tokenizer.ggml.token_type"] = gguf.GGUFValueType.UINT8
    with pytest.raises(ModelDamaged, match=r"token_type is stored as uint8\[\]; it must be int32\[\]"):
        writer.open()


def test_wrong_and_missing_and_superfluous_tensors(writer: Writer) -> None:
    good = dict(writer.tensors)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"blk.1.ffn_up.weight": good["blk.1.ffn_up.weight"].T}, r"ffn_up.weight has shape \[32, 96\]; .* \[96, 32\]"),
        ({"output_norm.weight": None}, "output_norm.weight is missing"),
        ({"token_embd.weight": None}, "token_embd.weight is missing"),
        ({"blk.0.attn_q.bias": np.zeros(32, np.float32)}, "attn_q.bias isn't part of the llama network"),
    ]
    for changes, pattern in cases:
        writer.tensors = {k: np.ascontiguousarray(v) for k, v in (good | changes).items() if v is not None}
        writer.keys["general.architecture"] = "llama"
        with pytest.raises(ModelError, match=pattern):
            writer.open()


def test_end_tokens_named_and_well_known(writer: Writer) -> None:
    tokens, kinds = writer.keys["tokenizer.ggml.tokens"], list(writer.keys["tokenizer.ggml.token_type"])
    tokens[40], kinds[40] = "<|eot_id|>", 3
    tokens[41] = "<|im_end|>"  # ordinary text here, so it ends nothing
    writer.keys |= {
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.eom_token_id": 9,
        "tokenizer.ggml.eot_token_id": 999,
    }
    assert writer.open().spec.eos_token_ids == (2, 9, 40)


def test_smollm2_is_what_it_is_known_to_be(smollm2: Path) -> None:
    started = time.process_time()
    checkpoint = GGUFCheckpoint(smollm2)
    assert time.process_time() - started < 0.5
    spec = checkpoint.spec
    assert (spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (30, 9, 3, 64)
    assert (spec.rope_theta, spec.tie_embeddings, spec.eos_token_ids) == (100_000.0, True, (2,))
    assert len(checkpoint.names()) == 272
    assert spec.num_parameters == 134_515_008


@pytest.mark.parametrize("part", ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.down_proj"])
def test_smollm2_equals_the_loading_of_transformers(smollm2: Path, part: str) -> None:
    """gguf's own dequantisation and transformers' own reordering, without its reader, which takes ten seconds."""
    from transformers import LlamaConfig
    from transformers.modeling_gguf_pytorch_utils import LlamaTensorProcessor

    checkpoint, file = GGUFCheckpoint(smollm2), read_gguf(smollm2)
    names = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "down_proj": "ffn_down"}
    stored = file.tensors[f"blk.7.{names[part.split('.')[1]]}.weight"]
    raw = np.frombuffer(file.raw(stored.name), np.uint8)
    weights = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[stored.type.name]).reshape(stored.shape)
    config = LlamaConfig(num_attention_heads=9, num_key_value_heads=3, hidden_size=576).to_dict()
    wanted = LlamaTensorProcessor(config=config).process(weights, stored.name).weights
    found = checkpoint.read(f"model.layers.7.{part}.weight", torch.float32)
    assert np.array_equal(found.numpy(), wanted)


def test_gemma3_has_windows_and_both_end_tokens(gemma3: Path) -> None:
    checkpoint = GGUFCheckpoint(gemma3)
    spec = checkpoint.spec
    assert spec.eos_token_ids == (1, 106)
    assert [layer for layer in range(18) if spec.window(layer) is None] == [5, 11, 17]
    assert (spec.rope_theta, spec.local_rope_theta, spec.embedding_scale) == (1e6, 1e4, 640**0.5)
    types = {tensor.type.name for tensor in read_gguf(gemma3).tensors.values()}
    assert types == {"F32", "Q4_K", "Q5_0", "Q6_K", "Q8_0"}  # case q-01
    assert checkpoint.read("model.layers.0.mlp.down_proj.weight", torch.bfloat16).isfinite().all()
