"""`tandem inspect`: everything the manifest says, readable, and without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tandem.cli.main import main
from tandem.engine.loading.engine_container import EngineContainer
from tests.cli.serving import run_tandem
from tests.engine.loading.engine_files import manifest, quality, target, write_engine


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_engine(tmp_path / "x.engine")
    return tmp_path / "x.engine"


def shown(path: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> list[str]:
    assert main(["inspect", str(path), *flags]) == 0
    return capsys.readouterr().out.splitlines()


def fact(lines: list[str], name: str) -> str:
    (found,) = [line for line in lines if line.startswith(name + " ")]
    return found.removeprefix(name).strip()


def test_what_it_is(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(path, capsys)
    assert fact(lines, "model") == f"tiny (folder), SHA-256 {'ab' * 32}"
    assert fact(lines, "network") == "llama, 3 layers, 0 M parameters"
    assert fact(lines, "weights") == "int4, awq, groups of 32, activations int8_token, arithmetic in bfloat16"
    assert fact(lines, "calibration") == "sample, 8 x 512 tokens"
    assert fact(lines, "KV cache").startswith(
        "int8, 2, blocks, heads, tokens, head, 1 group, blocks of 1 to 256 tokens"
    )
    assert "code of its own for 1 token" in fact(lines, "shapes")
    assert f"avx2, torch {target().torch}, weight layout 1" in fact(lines, "made for")
    assert fact(lines, "fits here") == "yes"
    assert "perplexity 12.500 beside 12.400, on 16,384 tokens, against bfloat16" in fact(lines, "quality")
    assert fact(lines, "built").endswith("in 41.2 s: export 1.2, compile 40.0")
    assert fact(lines, "command") == "tandem build tiny -o 'old name.engine' --precision int4"


def test_fusions_kernels_and_sizes(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [line.split() for line in shown(path, capsys)]
    for row in (
        ["add_rms_norm", "61"],
        ["layers.0-2,", "each", "40", "9"],
        ["all", "124", "30"],
        ["weights", "of", "layers.0-2,", "each", "2.0", "KiB", "int4"],
        ["weights", "of", "head", "4.0", "KiB", "int8"],
        ["package.pt2", "13.7", "KiB", "library"],
    ):
        assert row in rows


def test_layers_that_differ_stand_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = manifest()
    first, *others = made.weights
    write_engine(tmp_path / "x.engine", weights=(msgspec.structs.replace(first, size_bytes=999), *others))
    rows = [line.split() for line in shown(tmp_path / "x.engine", capsys)]
    assert ["weights", "of", "layers.0", "999", "B", "int4"] in rows
    assert ["weights", "of", "layers.1-2,", "each", "2.0", "KiB", "int4"] in rows


def test_a_file_for_elsewhere_is_shown_with_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_engine(tmp_path / "x.engine", target=target(torch="1.0"), quality=quality(is_within_limits=False))
    lines = shown(tmp_path / "x.engine", capsys)
    assert "was built with torch 1.0" in fact(lines, "fits here")
    assert "tandem build tiny" in fact(lines, "fits here")
    assert fact(lines, "quality").startswith("PAST THE LIMIT")


def test_little_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_engine(tmp_path / "x.engine", quality=None, fusions=(), kernels=(), weights=(), build_s={})
    lines = shown(tmp_path / "x.engine", capsys)
    assert fact(lines, "quality") == "not measured"
    assert "FUSIONS" not in lines


def test_json(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads("\n".join(shown(path, capsys, "--json")))
    assert found["spec"]["layer_windows"] == [None, 64, None]
    assert [part["name"] for part in found["parts"]][:2] == ["weights", "package.pt2"]


def test_verify(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(path, capsys, "--verify")[-1] == "verified: every part is what was written"
    data = bytearray(path.read_bytes())
    data[EngineContainer(path).manifest.parts[0].offset + 9] ^= 4
    path.write_bytes(data)
    assert main(["inspect", str(path)]) == 0
    capsys.readouterr()
    assert main(["inspect", str(path), "--verify"]) == 1
    assert "its part weights isn't what was written" in capsys.readouterr().err


def test_what_is_no_engine_file(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + bytes(5000))
    (tmp_path / "nothing").touch()
    for name, said in (("m.gguf", "but a GGUF model"), ("nothing", "is empty"), (".", "is a folder"), ("x", "exist")):
        result = run_tandem("inspect", str(tmp_path / name))
        assert (result.returncode, result.stderr.count("\n")) == (1, 1), result.stderr
        assert said in result.stderr


def test_serving_a_damaged_or_foreign_file_is_one_sentence(path: Path) -> None:
    data = path.read_bytes()
    for content, said in ((data[:-7], "cut short"), (b"\x08\x07 onnx", "isn't a Tandem engine file")):
        path.write_bytes(content)
        for command in (["serve", str(path)], ["generate", "hi", "--model", str(path)], ["chat", str(path)]):
            result = run_tandem(*command)
            assert (result.returncode, "Traceback" in result.stderr) == (1, False), result.stderr
            assert said in result.stderr


def test_no_torch_is_needed(path: Path) -> None:
    script = (
        "import sys; from tandem.cli.main import main\n"
        f"main(['inspect', {str(path)!r}, '--verify']); print(sorted({{'torch', 'numpy'}} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"
