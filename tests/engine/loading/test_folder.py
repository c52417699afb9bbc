"""Folders made by transformers: read whole and in shards, and refused with a reason where they are damaged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tandem.core.errors import ModelDamaged, ModelError, ModelNotFound, ModelUnsupported
from tandem.engine.loading.folder import FolderCheckpoint
from tandem.engine.models.spec import Family
from tests.engine.loading.tiny_models import SIZES, save_folder


def rewrite(path: Path, **changes: Any) -> None:
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in values.items() if value != "gone"}))


@pytest.mark.parametrize("shard_size", ["1GB", "20KB"])
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "gemma3"])
def test_every_tensor_is_that_of_transformers(tmp_path: Path, family: Family, shard_size: str) -> None:
    model = save_folder(tmp_path, family)
    (tmp_path / "model.safetensors").unlink()
    model.save_pretrained(tmp_path, max_shard_size=shard_size)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) is (shard_size == "20KB")
    checkpoint = FolderCheckpoint(tmp_path)
    wanted = {name: weights for name, weights in model.state_dict().items() if name in checkpoint.names()}
    assert checkpoint.names() == (wanted.keys() | {"lm_head.weight"} if family != "gemma3" else wanted.keys())
    for name, weights in wanted.items():
        assert torch.equal(checkpoint.read(name, torch.float32), weights), name
        assert checkpoint.shape(name) == tuple(weights.shape)


def test_reading_gives_own_memory_in_the_type_asked_for(tmp_path: Path) -> None:
    model = save_folder(tmp_path, "llama")
    checkpoint = FolderCheckpoint(tmp_path)
    for dtype in (torch.float32, torch.bfloat16):
        checkpoint.read("model.norm.weight", dtype).zero_()
        assert torch.equal(checkpoint.read("model.norm.weight", dtype), model.model.norm.weight.to(dtype))


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_text_half_of_a_model_that_sees(tmp_path: Path, prefix: str) -> None:
    model = save_folder(tmp_path, "gemma3")
    text = json.loads((tmp_path / "config.json").read_text())
    rewrite(
        tmp_path / "config.json", architectures=["Gemma3ForConditionalGeneration"], text_config=text, eos_token_id=[3]
    )
    state = {
        prefix + name.removeprefix("model."): weights.clone() for name, weights in model.model.state_dict().items()
    }
    save_file(state | {"vision_tower.x": torch.zeros(2)}, tmp_path / "model.safetensors")
    checkpoint = FolderCheckpoint(tmp_path)
    assert checkpoint.spec.eos_token_ids == (2, 3)
    assert torch.equal(checkpoint.read("model.norm.weight", torch.float32), model.model.norm.weight)


def test_end_tokens_of_all_files(tmp_path: Path) -> None:
    save_folder(tmp_path, "llama")
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 2, 9999]}')
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "<end>"}}')
    tokenizer = {"added_tokens": [{"id": 8, "content": "<end>"}], "model": {"vocab": {}}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    checkpoint = FolderCheckpoint(tmp_path)
    assert checkpoint.spec.eos_token_ids == (5, 2, 8)  # 9999 has no row in the embedding
    assert checkpoint.text.values == {"eos_token": {"content": "<end>"}}
    assert checkpoint.text.path == tmp_path


@pytest.mark.parametrize(
    ("config", "tokenizer", "token"),
    [
        ({"eos_token": "<e>", "added_tokens_decoder": {"7": {"content": "<e>"}}}, {}, 7),
        ({"eos_token": "<e>", "added_tokens_decoder": {"7": {"content": "<f>"}}}, {"model": {"vocab": {"<e>": 6}}}, 6),
        ({"eos_token": "<e>"}, {"model": {"vocab": [["<a>", 0.0], ["<e>", 0.0]]}}, 1),
        ({"eos_token": "<e>"}, {}, None),
        ({"eos_token": None}, {}, None),
    ],
)
def test_end_token_of_the_tokenizer(
    tmp_path: Path, config: dict[str, Any], tokenizer: dict[str, Any], token: int | None
) -> None:
    save_folder(tmp_path, "llama")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert FolderCheckpoint(tmp_path).spec.eos_token_ids == ((2,) if token is None else (2, token))


def damage(folder: Path, how: str) -> None:
    """One thing that can be wrong with a folder that was good."""
    weights = folder / "model.safetensors"
    match how:
        case "truncated":
            weights.write_bytes(weights.read_bytes()[:-100])
        case "header only half":
            weights.write_bytes(weights.read_bytes()[:20])
        case "empty":
            weights.write_bytes(b"")
        case "no weights":
            weights.unlink()
        case "pickles":
            weights.rename(folder / "pytorch_model.bin")
        case "missing shard":
            (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-1.safetensors"}}')
        case "shard elsewhere":
            (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../model.safetensors"}}')
        case "shard of no name":
            (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": ["b"]}}')
        case "index without map":
            (folder / "model.safetensors.index.json").write_text('{"weight_map": {}}')
        case "wrong shape":
            rewrite(folder / "config.json", intermediate_size=97)
        case "untied head missing":
            rewrite(folder / "config.json", tie_word_embeddings=False)
        case "superfluous layer":
            rewrite(folder / "config.json", num_hidden_layers=1)
        case "not JSON":
            (folder / "config.json").write_text("{")
        case "JSON list":
            (folder / "config.json").write_text("[]")
        case "no config":
            (folder / "config.json").unlink()
        case "bad end token":
            rewrite(folder / "config.json", eos_token_id="</s>")
        case "integers":
            save_file({"model.norm.weight": torch.zeros(2, dtype=torch.int8)}, weights)


@pytest.mark.parametrize(
    ("how", "kind", "pattern"),
    [
        ("truncated", ModelDamaged, "model.safetensors is cut short or isn't a safetensors file"),
        ("header only half", ModelDamaged, "model.safetensors is cut short"),
        ("empty", ModelDamaged, "model.safetensors"),
        ("no weights", ModelNotFound, "neither model.safetensors nor model.safetensors.index.json"),
        ("pickles", ModelUnsupported, "pickles"),
        ("missing shard", ModelDamaged, "names the shard model-1.safetensors, which is missing"),
        ("shard elsewhere", ModelDamaged, "isn't a file in the same folder"),
        ("shard of no name", ModelDamaged, r"weight_map names \['b'\]"),
        ("index without map", ModelDamaged, "model.embed_tokens.weight is missing"),
        ("wrong shape", ModelDamaged, r"mlp.gate_proj.weight has shape \[96, 32\]; it should have \[97, 32\]"),
        ("untied head missing", ModelDamaged, "lm_head.weight is missing"),
        ("superfluous layer", ModelUnsupported, r"model\.layers\.1\..* isn't part of the llama network"),
        ("not JSON", ModelDamaged, "config.json isn't valid JSON"),
        ("JSON list", ModelDamaged, "config.json must hold a JSON object"),
        ("no config", ModelUnsupported, "architecture not named"),
        ("bad end token", ModelDamaged, "eos_token_id is '</s>'"),
        ("integers", ModelUnsupported, "model.norm.weight has type I8"),
    ],
)
def test_damaged_folders(tmp_path: Path, how: str, kind: type[ModelError], pattern: str) -> None:
    save_folder(tmp_path, "llama", tie_word_embeddings=True)
    damage(tmp_path, how)
    with pytest.raises(kind, match=pattern) as caught:
        FolderCheckpoint(tmp_path)
    assert "\n" not in str(caught.value)


def test_opening_needs_no_torch(tmp_path: Path) -> None:
    save_folder(tmp_path, "llama", **SIZES)
    script = (
        "import sys; from pathlib import Path; from tandem.engine.loading.opening import open_checkpoint;"
        "import tandem.engine.loading.sources;"
        f"print(open_checkpoint(Path({str(tmp_path)!r})).spec.family, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["llama", "False"]
