"""The kernels' library as Python sees it: its C functions, its instruction sets, which of them this machine really has.

The layouts here are those of csrc/decoder.h, field by field; `tandem_abi` guards against a library of another age.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from ctypes import POINTER, Structure, c_char_p, c_float, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tandem.engine.kernels.cpu.build import VARIANT_FLAGS, build_library, say

ABI = 3
VARIANTS = tuple(VARIANT_FLAGS)
DTYPES = {"float32": 0, "bfloat16": 1, "int8": 2, "float16": 3, "uint8": 4}


class Config(Structure):
    """csrc/decoder.h: Config."""

    _fields_ = (
        *((name, c_int32) for name in ("variant", "threads", "spin_us", "rest_us")),
        *(
            (name, c_int32)
            for name in ("num_layers", "hidden", "intermediate", "num_heads", "num_kv_heads", "head_dim", "vocab")
        ),
        *((name, c_int32) for name in ("weight_dtype", "kv_dtype")),
        *(
            (name, c_int32)
            for name in ("block_size", "num_blocks", "num_pools", "num_groups", "max_tokens", "max_seqs")
        ),
        *((name, c_int32) for name in ("max_context", "activation", "tied", "qkv_bias", "qk_norm", "post_norms")),
        *(
            (name, c_float)
            for name in ("norm_eps", "attention_scale", "attention_soft_cap", "logit_soft_cap", "embedding_scale")
        ),
        *((name, c_void_p) for name in ("windows", "groups", "pools", "rope_index")),
        ("rope", c_void_p * 2),
    )


class Form(Structure):
    """csrc/common.h: Form."""

    _fields_ = tuple((name, c_int32) for name in ("kind", "activations", "group", "flags"))


class StepArgs(Structure):
    """csrc/decoder.h: StepArgs."""

    _fields_ = (
        *((name, c_int32) for name in ("num_tokens", "num_sequences", "num_samples", "max_blocks")),
        *((name, c_void_p) for name in ("token_ids", "positions", "query_start", "context_len", "sample_rows")),
        *((name, c_void_p) for name in ("block_tables", "slot_mapping", "logits", "argmax", "hidden_out")),
    )


class SampleArgs(Structure):
    """csrc/decoder.h: SampleArgs."""

    _fields_ = (
        *((name, c_int32) for name in ("num_rows", "vocab")),
        *((name, c_void_p) for name in ("rows", "temperature", "top_k", "top_p", "min_p", "uniform")),
        *((name, c_void_p) for name in ("chosen", "scratch")),
    )


_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "tandem_abi": (c_int32, ()),
    "tandem_variant_name": (c_char_p, (c_int32,)),
    "tandem_cpu_supports": (c_int32, (c_int32,)),
    "tandem_probe": (c_int32, (c_int32,)),
    "tandem_panel_bytes": (c_int64, (POINTER(Form), c_int32)),
    "tandem_pack": (None, (POINTER(Form), c_int32, c_int32, c_void_p, c_void_p, c_int32, *(c_void_p,) * 3)),
    "tandem_gemm": (c_int32, (c_int32, POINTER(Form), *(c_int32,) * 3, *(c_void_p,) * 3)),
    "tandem_decoder_create": (c_void_p, (POINTER(Config), POINTER(c_char_p))),
    "tandem_decoder_free": (None, (c_void_p,)),
    "tandem_decoder_sizes": (None, (c_void_p, POINTER(c_int64))),
    "tandem_decoder_strides": (None, (c_void_p, POINTER(c_int32))),
    "tandem_decoder_place_matrix": (None, (c_void_p, c_int32, c_int32, POINTER(Form), c_void_p)),
    "tandem_decoder_place_vector": (None, (c_void_p, c_int32, c_int32, c_void_p)),
    "tandem_decoder_load_matrix": (None, (c_void_p, c_int32, c_int32, c_void_p, c_int32)),
    "tandem_decoder_load_vector": (None, (c_void_p, c_int32, c_int32, c_void_p)),
    "tandem_decoder_copy_block": (None, (c_void_p, c_int32, c_int32)),
    "tandem_decoder_step": (c_char_p, (c_void_p, POINTER(StepArgs))),
    "tandem_sample": (c_int32, (c_void_p, c_int32, POINTER(SampleArgs))),
    "tandem_sample_scratch_bytes": (c_int64, (c_int64,)),
    "tandem_decoder_attention": (c_char_p, (c_void_p, POINTER(StepArgs), c_int32, c_void_p, c_void_p)),
}


def open_library(path: Path) -> ctypes.CDLL:
    """Loads the library and types its functions. Raises OSError if it is not ours or of another age."""
    library = ctypes.CDLL(str(path))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name, None)
        if function is None:
            raise OSError(f"{path} has no {name}")
        function.restype, function.argtypes = result, arguments
    if library.tandem_abi() != ABI:
        raise OSError(f"{path} has interface {library.tandem_abi()}, not {ABI}")
    return library


@dataclass(frozen=True, slots=True)
class Kernels:
    """A loaded library and the instruction sets that work on this machine, best first."""

    library: ctypes.CDLL
    path: Path
    variants: tuple[str, ...]

    @property
    def best(self) -> str:
        return self.variants[0]


def load_kernels(announce: Callable[[str], None] = say) -> tuple[Kernels | None, str]:
    """The kernels for this process, or None, and in either case a line that says why. Asks only once."""
    return _load_once(announce)


@cache
def _load_once(announce: Callable[[str], None]) -> tuple[Kernels | None, str]:
    built = build_library(announce)
    if built.path is None:
        return None, built.reason
    try:
        library = open_library(built.path)
    except OSError as error:
        return None, f"the compiled kernels can't be loaded: {error}"
    variants = tuple(v for v in _wanted(library) if probed(built.path, v))
    if not variants:
        return None, "no instruction set of the kernels works on this machine"
    return Kernels(library, built.path, variants), f"CPU kernels for {variants[0]} ({built.reason})"


def _wanted(library: ctypes.CDLL) -> list[str]:
    """What the processor claims, best first, or $TANDEM_CPU_VARIANT. Emulations serve only when named."""
    asked = os.environ.get("TANDEM_CPU_VARIANT")
    candidates = [asked] if asked in VARIANTS else [v for v in VARIANTS if not v.endswith("_emulated")]
    return [v for v in candidates if library.tandem_cpu_supports(VARIANTS.index(v))]


def probed(path: Path, variant: str) -> bool:
    """Whether the variant computes rightly, tried in a process of its own.

    A virtual machine may claim what it then kills us for. The answer is kept beside the library,
    by processor and system.
    """
    if variant in ("portable", "amx_emulated"):
        return True
    record = path.with_suffix(f".{_machine_key()}.json")
    try:
        known = json.loads(record.read_text())
    except (OSError, ValueError):
        known = {}
    if not isinstance(known.get(variant), bool):
        known[variant] = _probe(path, variant)
        try:
            partial = record.with_suffix(f".{os.getpid()}")
            partial.write_text(json.dumps(known))
            os.replace(partial, record)
        except OSError:
            pass  # a read-only place: ask again next time
    return bool(known[variant])


def _probe(path: Path, variant: str) -> bool:
    program = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).tandem_probe(int(sys.argv[2])))"
    command = [sys.executable, "-I", "-S", "-c", program, str(path), str(VARIANTS.index(variant))]
    try:
        return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


@cache
def _machine_key() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = "\n".join(
            sorted({line for line in lines if line.startswith(("model name", "flags", "Features", "stepping"))})
        )
    except OSError:
        cpu = platform.processor()
    return hashlib.sha256(f"{cpu}\n{platform.release()}".encode()).hexdigest()[:12]
