"""Opens a model at a path, whatever its format. Finding the path is `sources.py`'s business."""

from __future__ import annotations

from pathlib import Path

from tandem.core.errors import ModelNotFound
from tandem.engine.loading.base import Checkpoint
from tandem.engine.loading.folder import FolderCheckpoint
from tandem.engine.loading.gguf_checkpoint import GGUFCheckpoint


def open_checkpoint(path: Path) -> Checkpoint:
    """A .gguf file, a folder with config.json, or a folder with exactly one .gguf. Needs no torch."""
    if path.is_dir():
        return _open_folder(path)
    if not path.exists():
        raise ModelNotFound(f"{path} doesn't exist.")
    if path.suffix.lower() != ".gguf":
        raise ModelNotFound(f"{path} is neither a .gguf file nor a folder.")
    return GGUFCheckpoint(path)


def _open_folder(folder: Path) -> Checkpoint:
    if (folder / "config.json").is_file():
        return FolderCheckpoint(folder)
    files = sorted(folder.glob("*.gguf"))
    if len(files) == 1:
        return GGUFCheckpoint(files[0])
    if files:
        names = ", ".join(file.name for file in files)
        raise ModelNotFound(f"{folder} holds several GGUF files; name one of them: {names}.")
    raise ModelNotFound(f"{folder} holds neither config.json nor a .gguf file.")
