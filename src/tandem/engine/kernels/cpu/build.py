"""Compiles the CPU kernels on first use and keeps the library in a cache.

Looked for in this order: a library that came with the package (a platform wheel's), the cache, a compiler. Where none
of them helps, the answer is a reason instead of a path, and the caller serves with the torch reference. Knows nothing
of models.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tandem.engine.loading.cache import cache_root

SOURCES = Path(__file__).parent / "csrc"
PREBUILT = Path(__file__).parent / "lib"
BASE_FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-pthread",
    "-w",
)
"""No contraction: an expression gives the same bits wherever it is inlined; where fused is wanted, it is written."""

_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
_AVX512_BF16 = (*_AVX512, "-mavx512bf16", "-mavx512vnni")
VARIANT_FLAGS: dict[str, tuple[str, ...]] = {
    "amx": (*_AVX512_BF16, "-mamx-tile", "-mamx-bf16", "-mamx-int8"),
    "avx512_bf16": _AVX512_BF16,
    "avx512": _AVX512,
    "avx2": _AVX2,
    "portable": (),
    "amx_emulated": (),
}
"""Instruction set -> flags of its translation unit. The order is variants.cpp's: best first."""

X86_VARIANTS = ("amx", "avx512_bf16", "avx512", "avx2")


class Built(NamedTuple):
    """A library, or why there is none."""

    path: Path | None
    reason: str


@dataclass(frozen=True, slots=True)
class Compiler:
    command: tuple[str, ...]
    version: str

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*self.command, *arguments], capture_output=True, text=True, check=False)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def build_library(announce: Callable[[str], None] = say, extra_flags: tuple[str, ...] = ()) -> Built:
    """The kernels' library for this machine, compiled if need be. Doesn't raise: what goes wrong becomes the reason.

    `extra_flags` join every compilation and the link, and make a library of their own (sanitizers, in tests).
    """
    prebuilt = PREBUILT / f"libtandem-cpu-{platform.machine()}-{source_digest()[:16]}.so"
    if not extra_flags and prebuilt.exists():
        return Built(prebuilt, "came with the package")
    try:
        return _from_cache(announce, extra_flags)
    except OSError as error:
        return Built(None, f"compiling the CPU kernels failed: {error}")


def build_prebuilt(announce: Callable[[str], None] = say) -> Built:
    """Compiles into the package itself; what `make wheel` runs before it packs."""
    compiler = find_compiler()
    if compiler is None:
        return Built(None, _NO_COMPILER)
    PREBUILT.mkdir(exist_ok=True)
    target = PREBUILT / f"libtandem-cpu-{platform.machine()}-{source_digest()[:16]}.so"
    error = _compile(compiler, (), target, announce)
    return Built(None, error) if error else Built(target, "compiled for a wheel")


_NO_COMPILER = "there is no C++ compiler (looked for $CXX, g++, clang++); install one, or a wheel with prebuilt kernels"


def _from_cache(announce: Callable[[str], None], extra_flags: tuple[str, ...]) -> Built:
    compiler = find_compiler()
    if compiler is None:
        return Built(None, _NO_COMPILER)
    key = hashlib.sha256(
        "\0".join(
            [source_digest(), compiler.version, platform.machine(), *BASE_FLAGS, *extra_flags, repr(VARIANT_FLAGS)]
        ).encode()
    ).hexdigest()[:24]
    folder = cache_folder()
    target = folder / f"libtandem-cpu-{key}.so"
    if target.exists():
        return Built(target, "from the cache")
    with _locked(folder / f"{key}.lock"):
        if target.exists():  # another process compiled it while we waited
            return Built(target, "from the cache")
        error = _compile(compiler, extra_flags, target, announce)
    return Built(None, error) if error else Built(target, "compiled now")


def _compile(compiler: Compiler, extra_flags: tuple[str, ...], target: Path, announce: Callable[[str], None]) -> str:
    """Returns what went wrong, or "". The library appears under its name only when complete."""
    started = time.monotonic()
    announce(f"tandem: compiling the CPU kernels with {compiler.command[0]}, once (about 10 s on two cores)")
    # Longest first; each unit is one process, so as many at a time as there are cores.
    units = sorted(SOURCES.glob("*.cpp"), key=lambda p: not p.name.startswith("variant_"))
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        with ThreadPoolExecutor(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2) as pool:
            objects = list(pool.map(lambda unit: _compile_unit(compiler, unit, Path(work), extra_flags), units))
        failed = [result.reason for result in objects if result.path is None]
        if failed:
            return f"{compiler.command[0]} ({compiler.version}) can't compile the CPU kernels: {failed[0]}"
        library = Path(work) / "lib.so"
        linked = compiler.run("-shared", "-pthread", *extra_flags, *[str(o.path) for o in objects], "-o", str(library))
        if linked.returncode:
            return f"linking the CPU kernels failed: {_last_line(linked.stderr)}"
        os.replace(library, target)
    announce(f"tandem: CPU kernels compiled in {time.monotonic() - started:.1f} s: {target}")
    return ""


def _compile_unit(compiler: Compiler, unit: Path, work: Path, extra_flags: tuple[str, ...]) -> Built:
    """One translation unit. An instruction set that the compiler doesn't know becomes a stub that says so."""
    variant = unit.stem.removeprefix("variant_") if unit.stem.startswith("variant_") else ""
    x86 = platform.machine() in ("x86_64", "AMD64")
    flags = VARIANT_FLAGS.get(variant, ()) if x86 else ()
    output = work / f"{unit.stem}.o"
    common = (*BASE_FLAGS, *extra_flags, "-c", str(unit), "-o", str(output))
    stub = ("-DTANDEM_STUB",)
    result = compiler.run(*(stub if variant in X86_VARIANTS and not x86 else flags), *common)
    if result.returncode and variant in X86_VARIANTS:
        result = compiler.run(*stub, *common)
    return Built(None, _last_line(result.stderr)) if result.returncode else Built(output, "")


def _last_line(text: str) -> str:
    errors = [line for line in text.splitlines() if "error" in line]
    return (errors or text.splitlines() or ["no message"])[0].strip()


@cache
def source_digest() -> str:
    """SHA-256 over the names and contents of all sources."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def find_compiler() -> Compiler | None:
    """$CXX if set, else g++ or clang++; None if there is none that runs."""
    for candidate in filter(None, (os.environ.get("CXX"), "g++", "clang++")):
        command = tuple(shlex.split(candidate))
        if not command or shutil.which(command[0]) is None:
            continue
        version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
        if version.returncode == 0 and version.stdout:
            return Compiler(command, version.stdout.splitlines()[0])
    return None


def cache_folder() -> Path:
    """`kernels` beside the cached models; where that can't be written, a folder for this run."""
    try:
        folder = cache_root() / "kernels"
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except (OSError, RuntimeError):
        return _temporary_cache()


@cache
def _temporary_cache() -> Path:
    # A library is loaded from here: the folder is this process's own, unguessable and closed to others.
    import atexit

    folder = tempfile.mkdtemp(prefix="tandem-kernels-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Of two processes that compile the same, one waits. The system frees the lock when its holder dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)
