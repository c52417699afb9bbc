"""Compiles exported graphs ahead of time with AOTInductor into one package, weights left out.

The package holds compiled code only: constants are given at load time, from the mapped weight image.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tandem.core.errors import BuildFailed

_OPTIONS: dict[str, object] = {
    "aot_inductor.package": True,
    "aot_inductor.package_constants_in_so": False,  # they lie in the engine file, mapped
    "cpp.march": "",  # no code for this processor alone: what computes are the operators
}


def compile_package(programs: Mapping[str, torch.export.ExportedProgram], path: Path) -> None:
    """Compiles each program (name -> program) and writes the package to `path`. Raises `BuildFailed`."""
    from torch._inductor import aot_compile
    from torch._inductor.package.package import package_aoti

    try:
        files: dict[str, Any] = {}
        for name, program in programs.items():
            arguments, keywords = program.example_inputs
            module = program.module(check_guards=False)
            files[name] = aot_compile(module, arguments, keywords, options=_OPTIONS)
        package_aoti(str(path), files)
    except Exception as error:  # Inductor raises whatever its parts raise
        raise BuildFailed(f"Compiling the network failed: {_first_line(error)}.") from error


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0].rstrip(".")
