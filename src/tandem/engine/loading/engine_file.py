"""An engine file as a model: the same shape and tokenizer as its source, and the weights packed for compiled code.

Opening reads the manifest and needs no torch. The weights are mapped, not read: processes that serve one file share its
pages. What other code opens by a path (libraries, tokenizer files) is copied once into the cache, named by content.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from tandem.core.errors import ModelDamaged, ModelError, ModelUnsupported
from tandem.engine.loading.base import TextFiles
from tandem.engine.loading.cache import cache_root
from tandem.engine.loading.engine_container import EngineContainer
from tandem.engine.loading.engine_host import Host, refusal, this_host
from tandem.engine.loading.engine_manifest import EngineManifest, Part
from tandem.engine.loading.gguf import read_gguf
from tandem.engine.loading.hf_tokens import read_json

if TYPE_CHECKING:
    import torch

WEIGHTS = "weights"
TEXT_PREFIX = "text/"
GGUF_PART = "text/metadata.gguf"
"""A GGUF without tensors: the tokenizer of a model that came as one."""


class EngineFile:
    """`Checkpoint` over one engine file, which serves no single tensors: they are packed, see `map_weights`."""

    def __init__(self, container: EngineContainer) -> None:
        self.path = container.path
        self.manifest: EngineManifest = container.manifest
        self.spec = container.manifest.spec
        self._container = container
        self.text = self._open_text()

    def names(self) -> frozenset[str]:
        return frozenset()

    def shape(self, name: str) -> tuple[int, ...]:
        raise self._packed(name)

    def read(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        raise self._packed(name)

    def map_weights(self) -> torch.Tensor:
        """The packed image, uint8, one dimension: the file's own pages, read-only. Writing to it ends the process."""
        import torch

        view = self._container.view(self._container.part(WEIGHTS))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given buffer is not writable")
            return torch.frombuffer(view, dtype=torch.uint8)

    def extract(self, name: str, folder: Path | None = None) -> Path:
        """The part as a file of its own, verified, in `folder` or in the cache. Two processes may do so at once.

        Raises `ModelDamaged`, `ModelError` where the folder can't be written.
        """
        part = self._container.part(name)
        return self._extract(part, folder or extraction_root() / part.sha256[:32])

    def _extract(self, part: Part, folder: Path) -> Path:
        target = folder / Path(part.name).name
        if _holds(target, part):
            return target
        data = self._container.checked(part)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _publish(target, data)
        except OSError as error:
            raise ModelError(
                f"{target} can't be written: {error.strerror or error}; parts of {self.path} are kept there. "
                "Free some space, or set TANDEM_CACHE elsewhere."
            ) from error
        return target

    def _open_text(self) -> TextFiles:
        if self.manifest.part(GGUF_PART) is not None:
            path = self.extract(GGUF_PART)
            return TextFiles("gguf", path, read_gguf(path).metadata)
        parts = [part for part in self.manifest.parts if part.kind == "text"]
        if not parts:
            raise ModelDamaged(f"{self.path} has no tokenizer in it. {self._container.remedy()}")
        together = hashlib.sha256("\n".join(f"{part.name} {part.sha256}" for part in parts).encode()).hexdigest()
        folder = extraction_root() / together[:32]
        for part in parts:
            self._extract(part, folder)
        return TextFiles("folder", folder, read_json(folder / "tokenizer_config.json").raw)

    def _packed(self, name: str) -> ModelUnsupported:
        return ModelUnsupported(
            f"{self.path} is an engine file: its weights are packed for compiled code, and {name} can't be read from "
            f"it. Give the model it was built from: {self.manifest.source.name}"
        )


def open_engine_file(path: Path, host: Host | None = None) -> EngineFile:
    """Opened, and found fit for `host` (default: this machine). Needs no torch.

    Raises `ModelDamaged` for a damaged or foreign file, `ModelUnsupported` for one that was made for another machine.
    """
    container = EngineContainer(path)
    reason = refusal(container.manifest, host or this_host(), path)
    if reason is not None:
        raise ModelUnsupported(reason)
    return EngineFile(container)


def extraction_root() -> Path:
    """Where parts are kept that have to be files: `engines` beside the cached models."""
    return cache_root() / "engines"


def _holds(target: Path, part: Part) -> bool:
    """Whether it was extracted before, and is still what it was: a library from here will be run."""
    try:
        if target.stat().st_size != part.size_bytes:
            return False
        with target.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == part.sha256
    except OSError:
        return False


def _publish(target: Path, data: memoryview) -> None:
    """Whole or not at all, also while others do the same."""
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
