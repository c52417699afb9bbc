"""An engine file opens as the model it was made from, and where it can't be run, says why."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tandem.core.errors import ModelDamaged, ModelError, ModelNotFound, ModelUnsupported
from tandem.engine.loading.engine_file import EngineFile, open_engine_file
from tandem.engine.loading.engine_host import Host, refusal, this_host
from tandem.engine.loading.gguf import read_gguf
from tandem.engine.loading.opening import open_checkpoint
from tandem.engine.loading.sources import resolve
from tandem.engine.text.tokenizer import load_tokenizer
from tests.engine.loading.engine_files import LIBRARY, SPEC, WEIGHTS, Model, manifest, target, write_engine
from tests.engine.loading.gguf_builder import BOOL, FLOAT32, INT32, STRING, UINT8, UINT32, GGUFBuilder

TEXT = "hello world<|im_end|> Café 12\n"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TANDEM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def engine(tmp_path: Path) -> EngineFile:
    write_engine(tmp_path / "x.engine")
    return open_engine_file(tmp_path / "x.engine")


def test_it_is_the_model_it_was_made_from(engine: EngineFile, tmp_path: Path) -> None:
    assert engine.spec == SPEC
    assert engine.manifest.quantization.method == "awq"
    original, built = load_tokenizer(Model(tmp_path / "model").text), load_tokenizer(engine.text)
    assert built.encode(TEXT) == original.encode(TEXT)
    assert built.special_tokens == original.special_tokens == {"bos_token": "<|bos|>"}
    assert built.chat_template == original.chat_template is not None
    assert not engine.text.path.is_relative_to(tmp_path / "model")


def test_weights_are_the_files_own_pages(engine: EngineFile) -> None:
    weights = engine.map_weights()
    assert bytes(weights.numpy()) == WEIGHTS
    assert weights.data_ptr() % 4096 == 0
    maps = Path("/proc/self/maps").read_text().splitlines()
    ranges = [line for line in maps if str(engine.path) in line]
    assert ranges, "the file isn't mapped"
    assert all(line.split()[1] == "r--s" for line in ranges)
    starts_ends = [[int(end, 16) for end in line.split()[0].split("-")] for line in ranges]
    assert any(start <= weights.data_ptr() < end for start, end in starts_ends)


def test_weights_outlive_the_file_and_its_name(engine: EngineFile) -> None:
    weights = engine.map_weights()
    write_engine(engine.path, fingerprint="another")
    engine.path.unlink()
    del engine
    assert bytes(weights.numpy()) == WEIGHTS


def test_no_tensor_is_served(engine: EngineFile) -> None:
    assert engine.names() == frozenset()
    with pytest.raises(ModelUnsupported, match=r"packed for compiled code.*Give the model it was built from: tiny"):
        engine.read("lm_head.weight", torch.float32)


def test_parts_are_extracted_once_and_verified(engine: EngineFile, cache: Path) -> None:
    path = engine.extract("package.pt2")
    assert path.is_relative_to(cache)
    assert path.read_bytes() == LIBRARY
    before = path.stat().st_ino
    assert engine.extract("package.pt2").stat().st_ino == before
    path.write_bytes(b"X" + LIBRARY[1:])
    assert engine.extract("package.pt2").read_bytes() == LIBRARY
    with pytest.raises(ModelDamaged, match="no part 'kernels'"):
        engine.extract("kernels")


def test_many_extract_at_once(engine: EngineFile, tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(lambda _: engine.extract("package.pt2", tmp_path / "out"), range(32)))
    assert {path.read_bytes() for path in paths} == {LIBRARY}
    assert os.listdir(tmp_path / "out") == ["package.pt2"]


def test_a_cache_that_can_not_be_written_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_engine(tmp_path / "x.engine")
    (tmp_path / "file").touch()
    monkeypatch.setenv("TANDEM_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="set TANDEM_CACHE elsewhere"):
        open_engine_file(tmp_path / "x.engine")


def test_opening_needs_no_torch(engine: EngineFile) -> None:
    script = (
        "import sys; from pathlib import Path; from tandem.engine.loading.opening import open_checkpoint\n"
        f"open_checkpoint(Path({str(engine.path)!r})); print('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "False\n"


def test_a_gguf_keeps_its_metadata_and_leaves_its_tensors(tmp_path: Path) -> None:
    builder = GGUFBuilder(version=2).key("a.text", STRING, "grüß").key("a.flag", BOOL, True).key("a.small", UINT8, 7)
    builder.key("a.count", UINT32, 1 << 31).key("a.scale", FLOAT32, 0.1)
    builder.array("a.texts", STRING, ["x", "", "Ġy"]).array("a.kinds", INT32, [-1, 2]).floats("t", [1.0] * 1000)
    original = read_gguf(builder.write(tmp_path / "m.gguf"))
    model = Model(tmp_path / "m.gguf", text=Model.gguf_text(tmp_path / "m.gguf"))
    write_engine(tmp_path / "g.engine", model)
    opened = open_engine_file(tmp_path / "g.engine")
    copied = read_gguf(opened.text.path)
    assert (copied.tensors, copied.stored_as) == ({}, original.stored_as)
    assert {key: _plain(value) for key, value in copied.metadata.items()} == {
        key: _plain(value) for key, value in original.metadata.items()
    }
    assert opened.text.kind == "gguf"
    assert _plain(opened.text.values["a.kinds"]) == [-1, 2]


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def test_the_default_model_speaks_the_same(smollm2: Path, tmp_path: Path) -> None:
    source = open_checkpoint(smollm2)
    write_engine(tmp_path / "s.engine", source, spec=source.spec)
    opened = open_checkpoint(tmp_path / "s.engine")
    assert opened.spec == source.spec
    one, two = load_tokenizer(source.text), load_tokenizer(opened.text)
    assert (one.encode(TEXT), one.chat_template, one.special_tokens) == (
        two.encode(TEXT),
        two.chat_template,
        two.special_tokens,
    )
    assert opened.text.path.stat().st_size < 4e6


HERE = this_host()


@pytest.mark.parametrize(
    ("made_for", "host", "reason"),
    [
        ({}, {}, None),
        ({"machine": "riscv64"}, {}, f"was built for riscv64, and this machine is {HERE.machine}"),
        (
            {"cpu_features": ("avx1024", "amx_fp4"), "instruction_set": "avx1024"},
            {},
            "was built for avx1024, and this processor lacks avx1024, amx_fp4",
        ),
        ({"cpu_features": ("avx1024",)}, {"cpu_features": None}, None),
        ({"torch": "1.0"}, {"torch": "2.0"}, "was built with torch 1.0, and torch 2.0 is installed"),
        ({"torch": "1.0"}, {"torch": None}, "needs torch 1.0, and no torch is installed"),
        ({"image_version": 3}, {"image_version": None}, None),
        ({"image_version": 3}, {"image_version": 4}, "has weights packed in layout 3, and the kernels of this Tandem"),
        (
            {"device": "cuda", "compute_capability": "9.0"},
            {"compute_capability": "8.0"},
            "was built for compute capability 9.0, and this GPU has 8.0",
        ),
        ({"device": "cuda", "compute_capability": "9.0"}, {"compute_capability": "9.0"}, None),
    ],
)
def test_why_it_does_not_run_elsewhere(made_for: dict[str, Any], host: dict[str, Any], reason: str | None) -> None:
    found = refusal(manifest(target=target(**made_for)), replace(HERE, **host), Path("dir/x.engine"))
    if reason is None:
        assert found is None
        return
    assert found is not None
    assert found.startswith(f"dir/x.engine {reason}")
    assert found.endswith(". Build it here: tandem build tiny -o dir/x.engine --precision int4 --force")


def test_opening_refuses_a_foreign_machine(tmp_path: Path) -> None:
    write_engine(tmp_path / "x.engine", target=target(torch="1.0"))
    with pytest.raises(ModelUnsupported, match=r"torch 1\.0.*tandem build tiny"):
        open_checkpoint(tmp_path / "x.engine")
    host = Host(machine=HERE.machine, cpu_features=HERE.cpu_features, torch="1.0")
    assert open_engine_file(tmp_path / "x.engine", host).spec == SPEC


def test_this_host_says_what_torch_says() -> None:
    assert HERE.torch == torch.__version__
    assert HERE.cpu_features


def test_it_is_told_by_content_and_by_name(tmp_path: Path) -> None:
    write_engine(tmp_path / "plain")
    assert isinstance(open_checkpoint(tmp_path / "plain"), EngineFile)
    assert resolve(str(tmp_path / "plain")) == tmp_path / "plain"
    with pytest.raises(ModelNotFound, match=r"none\.engine doesn't exist"):
        resolve("some/none.engine")
    (tmp_path / "m.onnx").write_bytes(b"\x08\x07")
    with pytest.raises(ModelUnsupported, match=r"m\.onnx is ONNX.*Give the model it was exported from"):
        open_checkpoint(tmp_path / "m.onnx")
