"""Compiling and finding the library: caches, locks, compilers that are missing, old or broken, processors that lie."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tandem.engine.kernels.cpu import build, native
from tandem.engine.kernels.cpu.build import build_library, find_compiler


@pytest.fixture
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TANDEM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kernels"


def script(path: Path, text: str) -> Path:
    path.write_text("#!/bin/sh\n" + textwrap.dedent(text))
    path.chmod(0o755)
    return path


def quiet(line: str) -> None:
    pass


FAST = ("-O0",)
"""Joins the flags (after -O3, so it counts): these tests are about building, not about speed."""


def test_no_compiler_is_a_reason_not_an_error(monkeypatch: pytest.MonkeyPatch, empty_cache: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    path, reason = build_library(quiet)
    assert path is None
    assert "no C++ compiler" in reason


def test_a_failing_compiler_is_a_reason_not_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, empty_cache: Path
) -> None:
    bad = script(
        tmp_path / "cxx", 'case "$1" in --version) echo "Bad 1.0";; *) echo "x: error: internal" >&2; exit 1;; esac'
    )
    monkeypatch.setenv("CXX", str(bad))
    path, reason = build_library(quiet)
    assert path is None
    assert "internal" in reason
    assert "Bad 1.0" in reason
    assert not list(empty_cache.glob("*.so"))


def test_an_old_compiler_leaves_out_what_it_does_not_know(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, empty_cache: Path
) -> None:
    real = find_compiler()
    if real is None:
        pytest.skip("no compiler")
    old = script(
        tmp_path / "cxx",
        f"""
        case "$*" in
          *-mamx*|*avx512bf16*) echo "error: unrecognized option" >&2; exit 1;;
          --version) echo "Old 1.0";;
          *) exec {" ".join(real.command)} "$@";;
        esac
        """,
    )
    monkeypatch.setenv("CXX", str(old))
    path, reason = build_library(quiet, FAST)
    assert path is not None, reason
    library = native.open_library(path)
    names = [library.tandem_variant_name(i) for i in range(len(native.VARIANTS))]
    assert names[:2] == [None, None]
    assert names[2:] == [v.encode() for v in native.VARIANTS[2:]]
    assert library.tandem_cpu_supports(0) == 0


def test_two_processes_compile_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, empty_cache: Path) -> None:
    real = find_compiler()
    if real is None:
        pytest.skip("no compiler")
    log = tmp_path / "log"
    counting = script(
        tmp_path / "cxx", f'case "$*" in *-shared*) echo link >> {log};; esac\nexec {" ".join(real.command)} "$@"'
    )
    environment = os.environ | {"CXX": str(counting), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    program = "from tandem.engine.kernels.cpu.build import *; print(build_library(extra_flags=('-O0',)).path)"
    runs = [
        subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [run.communicate(timeout=120)[0] for run in runs]
    assert outputs[0] == outputs[1]
    assert Path(outputs[0].strip()).exists()
    assert log.read_text().splitlines() == ["link"]


def test_a_cache_that_cannot_be_written_is_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("TANDEM_CACHE", str(blocked))
    folder = build.cache_folder()
    assert folder.is_dir()
    assert oct(folder.stat().st_mode)[-3:] == "700"


def test_a_processor_that_lies_is_found_out(
    kernels: native.Kernels, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The probe runs what this machine lacks, as if it had claimed it: the answer must be no, and be kept."""
    if kernels.library.tandem_cpu_supports(native.VARIANTS.index("amx")):
        pytest.skip("this machine has AMX")
    copy = tmp_path / "lib.so"
    copy.write_bytes(kernels.path.read_bytes())
    assert not native.probed(copy, "amx")
    monkeypatch.setattr(native, "_probe", lambda path, variant: pytest.fail("asked twice"))
    assert not native.probed(copy, "amx")


@pytest.mark.skipif(
    "TANDEM_SANITIZE" not in os.environ, reason="set TANDEM_SANITIZE=1: compiles all with sanitizers, 20 s"
)
def test_under_sanitizers(tmp_path: Path) -> None:
    flags = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer")
    path, reason = build_library(quiet, flags)
    assert path is not None, reason
    preload = subprocess.run(
        ["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    tests = [str(Path(__file__).with_name(name)) for name in ("test_attention.py", "test_decoder.py")]
    environment = os.environ | {
        "LD_PRELOAD": preload,
        "ASAN_OPTIONS": "detect_leaks=0",
        "TANDEM_TEST_LIBRARY": str(path),
    }
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", *tests],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
