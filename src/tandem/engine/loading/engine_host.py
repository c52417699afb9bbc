"""Whether an engine file runs on this machine, and if not, why. Looks at the machine without loading torch."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from tandem.engine.loading.engine_container import rebuild_command
from tandem.engine.loading.engine_manifest import EngineManifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A machine, as far as an engine file cares. None: not known (yet), and then not compared."""

    machine: str
    """x86_64, aarch64."""
    cpu_features: frozenset[str] | None
    """Flags of /proc/cpuinfo."""
    torch: str | None
    """Its version; None: not installed."""
    image_version: int | None = None
    """Layout of packed weights that the kernels here read."""
    compute_capability: str | None = None
    """Of the GPU: "9.0"."""


@cache
def this_host() -> Host:
    """What can be told without torch. Whoever has loaded it adds image version and compute capability."""
    return Host(machine=platform.machine(), cpu_features=_cpu_features(), torch=_torch_version())


def refusal(manifest: EngineManifest, host: Host, path: Path) -> str | None:
    """Why the file can't be run there, with the command that builds it for there; None if it can."""
    reason = _difference(manifest, host)
    if reason is None:
        return None
    return f"{path} {reason}. Build it here: {rebuild_command(manifest, path)}"


def _difference(manifest: EngineManifest, host: Host) -> str | None:
    target = manifest.target
    if target.machine != host.machine:
        return f"was built for {target.machine}, and this machine is {host.machine}"
    missing = _missing_features(manifest, host)
    if missing:
        made_for = target.instruction_set or "a newer processor"
        return f"was built for {made_for}, and this processor lacks {', '.join(missing)}"
    if target.device == "cuda" and host.compute_capability not in (None, target.compute_capability):
        return (
            f"was built for compute capability {target.compute_capability}, and this GPU has {host.compute_capability}"
        )
    if host.torch is None:
        return f"needs torch {target.torch}, and no torch is installed"
    if target.torch != host.torch:
        return f"was built with torch {target.torch}, and torch {host.torch} is installed"
    if host.image_version not in (None, target.image_version):
        return (
            f"has weights packed in layout {target.image_version}, and the kernels of this Tandem read "
            f"layout {host.image_version}"
        )
    return None


def _missing_features(manifest: EngineManifest, host: Host) -> list[str]:
    if host.cpu_features is None:
        return []
    return [name for name in manifest.target.cpu_features if name not in host.cpu_features]


def _cpu_features() -> frozenset[str] | None:
    """x86 calls the line "flags", ARM "Features"."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, values = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(values.split())
    return None


def _torch_version() -> str | None:
    """Of the installed package, which is what `torch.__version__` says, without the second that importing takes."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None
