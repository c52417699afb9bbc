"""Build hook: with TANDEM_PREBUILT=1 (`make wheel`) the CPU kernels are compiled into the wheel, which is then for this
platform; otherwise the wheel is pure Python and the kernels are compiled on first use."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent


class PrebuiltKernels(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or os.environ.get("TANDEM_PREBUILT") != "1" or version == "editable":
            return
        sys.path.insert(0, str(ROOT / "src"))
        from tandem.engine.kernels.cpu.build import build_prebuilt

        built = build_prebuilt()
        if built.path is None:
            raise RuntimeError(f"the CPU kernels can't be compiled: {built.reason}")
        target = built.path.relative_to(ROOT / "src")
        build_data["force_include"][str(built.path)] = str(target)
        # For any Python 3 on this platform: the library is plain C behind ctypes.
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_platform()}"


def _platform() -> str:
    from packaging.tags import platform_tags

    return next(iter(platform_tags()))
