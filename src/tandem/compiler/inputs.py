"""What a build depends on, as one hash: built again from the same inputs, an engine file is recognised."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from tandem.config.build import BuildOptions
from tandem.core.errors import BuildFailed, ModelDamaged
from tandem.engine.loading.base import Checkpoint
from tandem.engine.loading.download import file_sha256
from tandem.engine.loading.engine_manifest import FORMAT_VERSION, Source, SourceFile, Target, plain_text

COMPILER_VERSION = 1
"""Raised when the same inputs give another file: a new pass, another packing, a changed quantiser."""
_FOLDER_ENDINGS = (".safetensors", ".json", ".jinja")


def describe_source(checkpoint: Checkpoint, name: str) -> Source:
    """The model's files with their hashes; reads all of them, about 1 s for 1 GB. `name`: as the user gave it."""
    path = checkpoint.path
    try:
        files = tuple(_source_file(file) for file in _model_files(path))
    except OSError as error:
        raise ModelDamaged(f"{error.filename or path} can't be read: {error.strerror or error}.") from error
    if path.is_dir():
        listed = "\n".join(f"{file.name} {file.sha256}" for file in files)
        sha256 = hashlib.sha256(listed.encode()).hexdigest()
    else:
        sha256 = files[0].sha256
    return Source(name=name, format="folder" if path.is_dir() else "gguf", sha256=sha256, files=files)


def input_fingerprint(source: Source, options: BuildOptions, target: Target) -> str:
    """Of the model's content, the options that matter, the calibration text's content, the machine and the versions."""
    inputs = {
        "model": source.sha256,
        "options": options.result_settings(),
        "calibration": calibration_sha256(options),
        "target": target,
        "compiler": COMPILER_VERSION,
        "format": FORMAT_VERSION,
    }
    return hashlib.sha256(msgspec.json.encode(inputs, enc_hook=plain_text, order="deterministic")).hexdigest()


def calibration_sha256(options: BuildOptions) -> str | None:
    """Raises `BuildFailed` for a file that can't be read."""
    if options.calibration is None:
        return None
    try:
        return file_sha256(Path(options.calibration).expanduser())
    except OSError as error:
        raise BuildFailed(
            f"The calibration file {options.calibration} can't be read: {error.strerror or error}."
        ) from error


def _model_files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.iterdir() if file.suffix in _FOLDER_ENDINGS and file.is_file())


def _source_file(path: Path) -> SourceFile:
    return SourceFile(name=path.name, size_bytes=path.stat().st_size, sha256=file_sha256(path))
