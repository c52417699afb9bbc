"""A real build of the default model: what is in the file, that its graphs run from the mapped weights, and refusals."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import msgspec
import pytest
import torch

from tandem.compiler.build import build_engine_file
from tandem.compiler.engine_writer import EngineWriter
from tandem.compiler.progress import SilentStages
from tandem.config.build import BuildOptions
from tandem.config.engine import EngineConfig
from tandem.core.errors import BuildFailed, ConfigError, ModelUnsupported
from tandem.engine.loading.engine_file import WEIGHTS, open_engine_file
from tandem.engine.loading.opening import open_checkpoint
from tandem.engine.memory import plan_memory
from tandem.engine.runner.compiled import CompiledDecoder
from tandem.engine.runner.compiled_making import PACKAGE, fitted, open_decoder


def opened(path: Path) -> CompiledDecoder:
    file = open_engine_file(path)
    config = EngineConfig(model=str(path), num_blocks=16, max_model_len=64)
    return open_decoder(file, config, plan_memory(file.spec, config, "float32", 0), "float32", 2)


def test_the_manifest_says_what_was_fused_and_how_good_it_is(smollm2_engine: Path) -> None:
    manifest = open_engine_file(smollm2_engine).manifest
    fusions = {fusion.name: fusion.count for fusion in manifest.fusions}
    layers = manifest.spec.num_layers
    assert fusions["q, k, v in one product"] == fusions["gate/up + activation"] == fusions["RoPE + KV write"] == layers
    assert fusions["residual add + RMSNorm"] == 2 * layers
    assert fusions["last-row gather before the LM head"] == 1
    assert fusions["whole stack in one native operator"] == layers
    inside = [kernels for kernels in manifest.kernels if kernels.layer == "layers.3"]
    assert len(inside) == 1
    assert inside[0].after < inside[0].before / 3
    assert manifest.quality is not None
    assert manifest.quality.num_tokens >= 16_000
    assert manifest.quality.mean_kl < 1e-6
    assert manifest.quality.is_within_limits
    assert {"quantise", "export", "fuse", "pack", "measure", "compile"} <= manifest.build_s.keys()
    assert sum(entry.size_bytes for entry in manifest.weights) <= manifest.weights_bytes


def test_weights_lie_outside_the_libraries_and_are_read_where_they_are_mapped(smollm2_engine: Path) -> None:
    file = open_engine_file(smollm2_engine)
    with zipfile.ZipFile(file.extract(PACKAGE)) as package:
        libraries = [entry.file_size for entry in package.infolist() if entry.filename.endswith(".so")]
    assert len(libraries) == 2, "a build for one token, one for everything else"
    assert sum(libraries) < 8e6 < file.manifest.weights_bytes
    decoder = opened(smollm2_engine)
    image = decoder._graphs.weights
    addresses = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(smollm2_engine) in line]
    begin, end = (int(part, 16) for part in addresses[0].split()[0].split("-"))
    assert begin <= image.data_ptr() < end, "the graphs' constant is the file's own mapping"
    decoder.close()


def test_compiled_graphs_give_the_same_whatever_they_are_called_with(smollm2_engine: Path) -> None:
    """A prompt at once, in two pieces around the edge of both graphs, and token by token."""
    ids = [1, 4093, 2271, 31, 260, 3575, 282]
    found = []
    for pieces in ([7], [1, 6], [2, 5], [6, 1], [1] * 7):
        decoder = opened(smollm2_engine)
        logits, at = torch.empty(1, decoder.spec.vocab_size), 0
        for count in pieces:
            positions = torch.arange(at, at + count, dtype=torch.int32)
            decoder.step(
                torch.tensor(ids[at : at + count], dtype=torch.int32),
                positions,
                torch.tensor([0, count], dtype=torch.int32),
                torch.tensor([at + count], dtype=torch.int32),
                [torch.zeros(1, 1, dtype=torch.int32)],
                [positions],
                torch.tensor([count - 1], dtype=torch.int32),
                argmax_out=torch.empty(1, dtype=torch.int32),
                logits_out=logits,
            )
            at += count
        decoder.close()
        found.append(logits)
    assert all(torch.equal(found[0], one) for one in found[1:])


def test_built_again_from_the_same_it_is_recognised(smollm2_engine: Path, smollm2: Path) -> None:
    before = os.stat(smollm2_engine)
    options = BuildOptions(model=str(smollm2), output=str(smollm2_engine), precision="float32")
    progress = SilentStages()
    assert build_engine_file(options, progress).fingerprint == open_engine_file(smollm2_engine).manifest.fingerprint
    assert os.stat(smollm2_engine).st_mtime_ns == before.st_mtime_ns
    assert progress.seconds.keys() == {"read"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"dtype": "bfloat16"}, "dtype is bfloat16"),
        ({"kernels": "reference"}, "kernels is 'reference'"),
        ({"device": "cuda"}, "device is cuda"),
        ({"max_num_batched_tokens": 4096}, "max_num_batched_tokens is 4096"),
    ],
)
def test_settings_that_it_was_not_built_for_are_refused(
    smollm2_engine: Path, settings: dict[str, object], said: str
) -> None:
    config = msgspec.convert({"model": str(smollm2_engine)} | settings, EngineConfig)
    with pytest.raises(ConfigError, match=said):
        fitted(config, open_engine_file(smollm2_engine))


def test_another_layout_of_weights_is_refused_with_the_command(smollm2_engine: Path, tmp_path: Path) -> None:
    file = open_engine_file(smollm2_engine)
    target = msgspec.structs.replace(file.manifest.target, image_version=99)
    other = tmp_path / "other.engine"
    with EngineWriter(other) as writer:
        writer.add(WEIGHTS, "weights", bytes(4096))
        writer.add_text(file)
        writer.finish(msgspec.structs.replace(file.manifest, target=target))
    with pytest.raises(ModelUnsupported, match=r"layout 99.*tandem build"):
        opened(other)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"precision": "fp4"}, "needs a GPU"),
        ({"precision": "float16"}, "float16"),
        ({"precision": "int8", "kv_dtype": "fp8"}, "kv_dtype is fp8"),
        ({"precision": "int8", "calibration": "/dev/null"}, "doesn't look at any text"),
        ({"precision": "w8a8", "group_size": 64}, "has no groups"),
    ],
)
def test_what_this_device_lacks_is_refused_before_any_work(
    smollm2: Path, tmp_path: Path, options: dict[str, str | int], said: str
) -> None:
    asked = msgspec.convert({"model": str(smollm2), "output": str(tmp_path / "x.engine")} | options, BuildOptions)
    with pytest.raises(ConfigError, match=said):
        build_engine_file(asked, SilentStages())
    assert list(tmp_path.iterdir()) == []


def test_a_build_past_its_limits_is_refused(smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.compiler.judging.MAX_SEQUENCES", 2)
    options = BuildOptions(model=str(smollm2), output=str(tmp_path / "x.engine"), precision="w8a8", max_kl=1e-6)
    with pytest.raises(BuildFailed, match=r"changes the model too much.*--accept-quality"):
        build_engine_file(options, SilentStages())
    assert list(tmp_path.iterdir()) == []


def test_an_engine_file_is_no_source_of_tensors(smollm2_engine: Path) -> None:
    with pytest.raises(ModelUnsupported, match="engine file"):
        open_checkpoint(smollm2_engine).read("model.norm.weight", torch.float32)
