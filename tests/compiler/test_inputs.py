"""The fingerprint changes with everything that changes the file, and with nothing else."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from tandem.compiler import inputs
from tandem.compiler.inputs import describe_source, input_fingerprint
from tandem.config.build import BuildOptions
from tandem.core.errors import BuildFailed
from tandem.engine.loading.engine_manifest import encode_manifest
from tests.engine.loading.engine_files import Model, manifest, target

PLAIN = BuildOptions(model="m", output="o.engine")


@pytest.fixture
def model(tmp_path: Path) -> Model:
    made = Model(tmp_path / "model")
    (made.path / "model.safetensors").write_bytes(b"weights")
    (made.path / "README.md").write_text("not a part")
    return made


def test_a_folder_is_told_by_the_content_of_its_files(model: Model) -> None:
    source = describe_source(model, "org/name")
    assert (source.name, source.format) == ("org/name", "folder")
    names = [file.name for file in source.files]
    assert names == ["chat_template.jinja", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    (model.path / "README.md").write_text("changed")
    assert describe_source(model, "org/name").sha256 == source.sha256
    (model.path / "model.safetensors").write_bytes(b"others")
    assert describe_source(model, "org/name").sha256 != source.sha256


def test_a_file_is_told_by_its_hash(smollm2: Path) -> None:
    from tandem.engine.loading.catalog import SMOLLM2
    from tandem.engine.loading.opening import open_checkpoint

    source = describe_source(open_checkpoint(smollm2), "smollm2-135m")
    assert (source.sha256, source.format) == (SMOLLM2.sha256, "gguf")


def test_what_changes_the_fingerprint(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = describe_source(model, "m")
    first = input_fingerprint(source, PLAIN, target())
    text = tmp_path / "c.txt"
    text.write_text("calibrate")
    with_text = msgspec.structs.replace(PLAIN, calibration=str(text))
    others = [
        input_fingerprint(msgspec.structs.replace(source, sha256="other"), PLAIN, target()),
        input_fingerprint(source, msgspec.structs.replace(PLAIN, precision="int4"), target()),
        input_fingerprint(source, msgspec.structs.replace(PLAIN, kv_dtype="int8"), target()),
        input_fingerprint(source, PLAIN, target(torch="1.0")),
        input_fingerprint(source, PLAIN, target(instruction_set="sse")),
        input_fingerprint(source, with_text, target()),
    ]
    text.write_text("calibrate otherwise")
    others.append(input_fingerprint(source, with_text, target()))
    monkeypatch.setattr(inputs, "COMPILER_VERSION", inputs.COMPILER_VERSION + 1)
    others.append(input_fingerprint(source, PLAIN, target()))
    assert len({first, *others}) == len(others) + 1


def test_what_does_not(model: Model) -> None:
    source = describe_source(model, "m")
    first = input_fingerprint(source, PLAIN, target())
    for changes in ({"output": "p.engine"}, {"threads": 7}, {"force": True}, {"model": "n"}):
        assert input_fingerprint(source, msgspec.structs.replace(PLAIN, **changes), target()) == first


def test_torchs_own_version_object_will_do(model: Model) -> None:
    source, version = describe_source(model, "m"), str(torch.__version__)
    theirs, plain = target(torch=torch.__version__), target(torch=version)
    assert input_fingerprint(source, PLAIN, theirs) == input_fingerprint(source, PLAIN, plain)
    assert encode_manifest(manifest(target=theirs)) == encode_manifest(manifest(target=plain))


def test_a_calibration_file_that_is_not_there(model: Model) -> None:
    options = msgspec.structs.replace(PLAIN, calibration="none.txt")
    with pytest.raises(BuildFailed, match=r"The calibration file none\.txt can't be read"):
        input_fingerprint(describe_source(model, "m"), options, target())
