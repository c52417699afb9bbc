"""Opens a model at a path, whatever its format. Finding the path is `sources.py`'s business."""

from __future__ import annotations

from pathlib import Path

from tandem.core.errors import ModelNotFound, ModelUnsupported
from tandem.engine.loading.base import Checkpoint
from tandem.engine.loading.engine_container import is_engine_file
from tandem.engine.loading.engine_file import open_engine_file
from tandem.engine.loading.folder import FolderCheckpoint
from tandem.engine.loading.gguf_checkpoint import GGUFCheckpoint


def open_checkpoint(path: Path) -> Checkpoint:
    """A .gguf file, an engine file, a folder with config.json, or one with exactly one .gguf. Needs no torch."""
    if path.is_dir():
        return _open_folder(path)
    if not path.exists():
        raise ModelNotFound(f"{path} doesn't exist.")
    refuse_onnx(path)
    if path.suffix.lower() == ".engine" or is_engine_file(path):
        return open_engine_file(path)
    if path.suffix.lower() != ".gguf":
        raise ModelNotFound(f"{path} is neither a .gguf file, nor an engine file, nor a folder.")
    return GGUFCheckpoint(path)


def refuse_onnx(path: Path) -> None:
    """Raises `ModelUnsupported` for a file of that format, or a folder with nothing else in it."""
    is_exported_folder = path.is_dir() and any(path.glob("*.onnx")) and not (path / "config.json").exists()
    if path.suffix.lower() == ".onnx" or is_exported_folder:
        raise ModelUnsupported(
            f"{path} is ONNX, a graph that is finished already, without the configuration and the tokenizer that an "
            "engine needs. Give the model it was exported from: its folder in Hugging Face's layout, a .gguf file, or "
            "its hub id."
        )


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
