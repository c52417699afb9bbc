"""`tandem build`: the command line around a build that is not the compiler's, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from tandem.cli.main import main
from tandem.compiler.engine_writer import EngineWriter, find_existing
from tandem.compiler.progress import StageProgress
from tandem.config.build import BuildOptions
from tandem.config.describe import settings_of
from tandem.core.errors import BuildFailed, ConfigError
from tandem.engine.loading.engine_container import EngineContainer
from tandem.engine.loading.engine_manifest import EngineManifest
from tests.cli.serving import run_tandem
from tests.engine.loading.engine_files import Model, manifest, quality, write_engine

Build = Callable[[BuildOptions, StageProgress], EngineManifest]


def build_engine_file(options: BuildOptions, progress: StageProgress) -> EngineManifest:
    """In the manner of the real one."""
    if not options.force and (found := find_existing(options.path, "f00d")) is not None:
        return found
    with EngineWriter(options.path) as writer:
        with progress.stage("quantise"):
            progress.advance(1, 2)
        with progress.stage("compile"):
            writer.add("weights", "weights", b"w" * 5000)
        return writer.finish(manifest(command=options.command(), build_s=progress.seconds))


@pytest.fixture
def using(monkeypatch: pytest.MonkeyPatch) -> Callable[[Build], None]:
    def use(build: Build) -> None:
        module = ModuleType("tandem.compiler.build")
        module.build_engine_file = build  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "tandem.compiler.build", module)

    return use


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(Model(tmp_path / "model").path)


def test_it_builds_once(
    tmp_path: Path, model: str, using: Callable[[Build], None], capsys: pytest.CaptureFixture[str]
) -> None:
    using(build_engine_file)
    target = tmp_path / "x.engine"
    arguments = ["build", model, "-o", str(target), "--precision", "awq", "--group-size", "64", "--accept-quality"]
    assert main(arguments) == 0
    shown = capsys.readouterr()
    assert f"{target}: tiny, int4, awq, groups of 32" in shown.out
    assert "quality: KL 0.0123 (at most 0.02), first token equal 96.1%" in shown.out
    assert re.findall(r"^(\w+)(?: \.\.\.|: [\d.]+ s)$", shown.err, re.M) == ["quantise"] * 2 + ["compile"] * 2
    written = EngineContainer(target).manifest
    assert written.command == ("tandem", *arguments)
    assert list(written.build_s) == ["quantise", "compile"]
    assert main(arguments) == 0
    assert f"{target} is up to date" in capsys.readouterr().out
    assert main([*arguments, "--force"]) == 0
    assert "built in" in capsys.readouterr().out
    assert sorted(os.listdir(tmp_path)) == ["model", "x.engine"]


def test_json_is_the_manifest_and_nothing_else(
    tmp_path: Path, model: str, using: Callable[[Build], None], capsys: pytest.CaptureFixture[str]
) -> None:
    using(build_engine_file)
    assert main(["build", model, "-o", str(tmp_path / "x.engine"), "--json"]) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed)["fingerprint"] == "f00d"
    assert msgspec.json.decode(printed, type=EngineManifest) == EngineContainer(tmp_path / "x.engine").manifest


def _raise(error: BaseException) -> Build:
    def build(options: BuildOptions, progress: StageProgress) -> EngineManifest:
        with progress.stage("compile"):
            raise error

    return build


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (BuildFailed("The calibration file c.txt is empty."), 1, "The calibration file c.txt is empty."),
        (RuntimeError("Unsupported: foo\nfrom user code:\n ..."), 1, "can't be built: RuntimeError: Unsupported: foo."),
        (MemoryError(), 1, "There isn't enough memory to build"),
        (OSError(28, "No space left on device"), 1, "The disk is full: a temporary file can't be written."),
        (OSError(13, "Permission denied", "/x"), 1, "/x: Permission denied."),
        (ConfigError("device is 'cuda', but torch sees no GPU."), 1, "torch sees no GPU"),
        (KeyboardInterrupt(), 130, "the build was interrupted; nothing was written."),
    ],
)
def test_whatever_goes_wrong_is_one_sentence(
    error: BaseException,
    status: int,
    said: str,
    tmp_path: Path,
    model: str,
    using: Callable[[Build], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    using(_raise(error))
    assert main(["build", model, "-o", str(tmp_path / "x.engine")]) == status
    sentences = [line for line in capsys.readouterr().err.splitlines() if line != "compile ..."]
    assert len(sentences) == 1
    assert sentences[0].startswith("tandem: ")
    assert said in sentences[0]


def test_mistakes_are_found_before_anything_is_built(tmp_path: Path, model: str) -> None:
    (tmp_path / "m.onnx").write_bytes(b"\x08\x07")
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    write_engine(tmp_path / "x.engine")
    out = ["-o", str(tmp_path / "new.engine")]
    before = sorted(os.listdir(tmp_path))
    for arguments, status, said in (
        ([model], 2, "required: -o/--output"),
        ([model, *out, "--precision", "int3"], 2, "invalid choice: 'int3'"),
        ([model, *out, "--group-size", "48"], 2, "group_size is 48; it must be 32, 64, 128"),
        ([model, *out, "--max-kl", "-1"], 2, "--max-kl"),
        ([str(tmp_path / "m.onnx"), *out], 1, "is ONNX"),
        ([str(tmp_path / "x.engine"), *out], 1, "is an engine file already; give the model it was built from: tiny"),
        ([str(tmp_path / "none.gguf"), *out], 1, "none.gguf doesn't exist"),
        (["smollm2-135", *out], 1, "Did you mean smollm2-135m?"),
        ([model, "-o", str(tmp_path / "m.gguf")], 1, "m.gguf is there and isn't an engine file"),
        ([model, "-o", str(tmp_path)], 1, "is a folder; name the file"),
        ([model, "-o", str(tmp_path / "no/x.engine")], 1, "Make it first"),
    ):
        result = run_tandem("build", *arguments)
        assert (result.returncode, "Traceback" in result.stderr) == (status, False), result.stderr
        assert said in result.stderr
    assert sorted(os.listdir(tmp_path)) == before


SLOW = """
import sys, time
from types import ModuleType
from tandem.cli.main import main
from tandem.compiler.engine_writer import EngineWriter

def build_engine_file(options, progress):
    with EngineWriter(options.path) as writer, progress.stage("compile"):
        writer.add("weights", "weights", b"w" * 5000)
        print("begun", flush=True)
        time.sleep(60)

module = ModuleType("tandem.compiler.build")
module.build_engine_file = build_engine_file
sys.modules["tandem.compiler.build"] = module
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_it_leaves_nothing(tmp_path: Path, model: str, number: signal.Signals) -> None:
    command = [sys.executable, "-c", SLOW, "build", model, "-o", str(tmp_path / "x.engine")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        assert ".x.engine.building" in os.listdir(tmp_path)
        started_s = time.monotonic()
        process.send_signal(number)
        _, said = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert time.monotonic() - started_s < 20
    assert (process.returncode, "Traceback" in said) == (130, False)
    assert "nothing was written" in said
    assert os.listdir(tmp_path) == ["model"]


def test_the_command_is_kept_and_gives_the_same_options(tmp_path: Path) -> None:
    options = BuildOptions(model="m", output="o", precision="int4", group_size=32, threads=2, accept_quality=True)
    assert options.command() == (
        *("tandem", "build", "m", "-o", "o", "--precision", "int4", "--group-size", "32"),
        *("--threads", "2", "--accept-quality"),
    )
    assert BuildOptions(model="m", output="o", force=True).command() == ("tandem", "build", "m", "-o", "o")


def test_every_option_is_a_flag_and_in_the_documentation() -> None:
    shown = run_tandem("build", "--help").stdout
    page = (Path(__file__).parents[2] / "docs/compiler.md").read_text()
    for setting in settings_of(BuildOptions):
        if setting.name not in ("model", "output"):
            assert setting.flag in shown
            assert f"`{setting.flag}" in page, f"docs/compiler.md doesn't name {setting.flag}"


def test_options_that_matter_are_part_of_the_fingerprint() -> None:
    plain: dict[str, Any] = BuildOptions(model="m", output="o").result_settings()
    assert {"precision", "group_size", "kv_dtype", "device", "max_num_batched_tokens", "accept_quality"} <= plain.keys()
    assert not {"output", "threads", "force"} & plain.keys()


def test_a_build_past_its_limit_says_so(
    tmp_path: Path, model: str, using: Callable[[Build], None], capsys: pytest.CaptureFixture[str]
) -> None:
    def build(options: BuildOptions, progress: StageProgress) -> EngineManifest:
        return write_engine(options.path, quality=quality(mean_kl=0.5, is_within_limits=False))

    using(build)
    assert main(["build", model, "-o", str(tmp_path / "x.engine"), "--accept-quality"]) == 0
    assert "PAST THE LIMIT, accepted by --accept-quality: KL 0.5000" in capsys.readouterr().out
