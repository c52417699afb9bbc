"""Small engine files for tests: a real container with a tokenizer, and weights and a library that are only bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from tandem.compiler.engine_writer import EngineWriter
from tandem.engine.loading.base import Checkpoint, TextFiles
from tandem.engine.loading.engine_host import this_host
from tandem.engine.loading.engine_manifest import (
    EngineManifest,
    Fusion,
    KVLayout,
    LayerKernels,
    Quality,
    Quantization,
    Shapes,
    Source,
    Target,
    WeightEntry,
)
from tandem.engine.models.spec import ModelSpec
from tests.engine.text import tiny

WEIGHTS = bytes(range(256)) * 40
LIBRARY = b"compiled code " * 1000
SPEC = ModelSpec(
    family="llama",
    num_layers=3,
    hidden_size=64,
    intermediate_size=96,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    vocab_size=300,
    max_position=512,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
    layer_windows=(None, 64, None),
    eos_token_ids=(2, 7),
)


def target(**changes: Any) -> Target:
    """This very machine, but for the changes."""
    host = this_host()
    here = Target(
        device="cpu",
        machine=host.machine,
        instruction_set="avx2",
        cpu_features=tuple(sorted(host.cpu_features or ()))[:3],
        torch=host.torch or "",
        image_version=1,
    )
    return msgspec.structs.replace(here, **changes)


def manifest(**changes: Any) -> EngineManifest:
    made = EngineManifest(
        source=Source(name="tiny", format="folder", sha256="ab" * 32),
        spec=SPEC,
        dtype="bfloat16",
        quantization=Quantization(
            precision="int4",
            method="awq",
            group_size=32,
            activations="int8_token",
            calibration="sample, 8 x 512 tokens",
        ),
        shapes=Shapes(max_num_batched_tokens=512),
        kv=KVLayout(dtype="int8", layout="2, blocks, heads, tokens, head", num_groups=1),
        target=target(),
        fingerprint="f00d",
        command=("tandem", "build", "tiny", "-o", "old name.engine", "--precision", "int4"),
        tandem="0.1.0",
        build_s={"export": 1.25, "compile": 40.0},
        quality=quality(),
        fusions=(Fusion(name="add_rms_norm", count=61), Fusion(name="qkv", count=30)),
        kernels=(
            LayerKernels(layer="embedding", before=1, after=1),
            *(LayerKernels(layer=f"layers.{layer}", before=40, after=9) for layer in range(3)),
            LayerKernels(layer="head", before=3, after=2),
        ),
        weights=(
            *(WeightEntry(name=f"layers.{n}.qkv", offset=n * 2048, size_bytes=2048, kind="int4") for n in range(3)),
            WeightEntry(name="head", offset=6144, size_bytes=4096, kind="int8", group_size=32),
        ),
        graphs={"order": ["x", "y"]},
    )
    return msgspec.structs.replace(made, **changes)


def quality(**changes: Any) -> Quality:
    made = Quality(
        reference="bfloat16",
        num_tokens=16384,
        perplexity=12.5,
        reference_perplexity=12.4,
        mean_kl=0.0123,
        top1_agreement=0.961,
        max_kl=0.02,
        min_top1=0.95,
        is_within_limits=True,
    )
    return msgspec.structs.replace(made, **changes)


class Model:
    """As much of a `Checkpoint` as a writer looks at: a folder with a tokenizer of its own."""

    def __init__(self, path: Path, text: TextFiles | None = None) -> None:
        self.path = path
        self.spec = SPEC
        self.text = text or _save_text(path)

    @staticmethod
    def gguf_text(path: Path) -> TextFiles:
        return TextFiles("gguf", path, {})

    def names(self) -> frozenset[str]:
        raise NotImplementedError

    def shape(self, name: str) -> tuple[int, ...]:
        raise NotImplementedError

    def read(self, name: str, dtype: Any) -> Any:
        raise NotImplementedError


def _save_text(folder: Path) -> TextFiles:
    config = {"bos_token": "<|bos|>"}
    text = tiny.save(folder, tiny.byte_level(), config)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    return text


def write_engine(path: Path, model: Checkpoint | None = None, **changes: Any) -> EngineManifest:
    """An engine file at `path`; `changes` are the manifest's."""
    with EngineWriter(path) as writer:
        writer.add("weights", "weights", WEIGHTS)
        writer.add("package.pt2", "library", LIBRARY)
        writer.add_text(model or Model(path.parent / "model"))
        return writer.finish(manifest(**changes))
