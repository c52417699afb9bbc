"""From what the user calls a model to a path on this machine. Knows no file formats.

A name of the catalogue comes first, whatever lies in the working directory; write `./name` for a folder of that name.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from tandem.core.errors import ModelNotFound
from tandem.engine.loading import hub
from tandem.engine.loading.cache import CachedModel, ModelCache
from tandem.engine.loading.catalog import CATALOG, CatalogEntry
from tandem.engine.loading.install import install
from tandem.engine.loading.pip_settings import read_pip_settings
from tandem.engine.loading.progress import NoProgress, Progress
from tandem.engine.loading.web import Web


def resolve(model: str, *, progress: Progress | None = None, offline: bool = False, verify: bool = False) -> Path:
    """The model's .gguf file or folder, fetched if need be.

    `model` is a catalogue name, a path, or a hub id; `offline` fetches nothing; `verify` reads a cached file whole and
    fetches it again if it changed. Raises `ModelError`s, and `ConfigError` for a cache that can't be written.
    """
    progress = progress or NoProgress()
    if model in CATALOG:
        return _from_catalog(CATALOG[model], progress, offline=offline, verify=verify)
    path = os.path.expanduser(model)
    if os.path.exists(path):
        return Path(path)
    if hub.is_hub_id(model) and not _is_path(model):
        return hub.snapshot(model, progress, offline=offline)
    raise _unknown(model)


def list_models() -> list[CachedModel]:
    """What needs no fetching: catalogue models in Tandem's cache, then models in the hub's."""
    return [*ModelCache().models(), *hub.cached()]


def remove(name: str, *, progress: Progress | None = None) -> None:
    """Delete a cached model, by the name that `list_models` gives. Raises `ModelNotFound`."""
    if hub.is_hub_id(name):
        hub.remove(name)
        return
    if name not in CATALOG:
        raise _unknown(name)
    ModelCache().remove(name, progress or NoProgress())


def _from_catalog(entry: CatalogEntry, progress: Progress, *, offline: bool, verify: bool) -> Path:
    cache = ModelCache()
    found = cache.lookup(entry, verify=verify)
    if found is not None:
        return found
    if offline:
        raise ModelNotFound(f"{entry.name} isn't in the cache, {cache.root}, and nothing is fetched when offline.")
    settings = read_pip_settings()
    return install(entry, cache, settings, Web(settings), progress, verify=verify)


def _is_path(model: str) -> bool:
    return model.startswith((".", "/", "~")) or model.endswith((".gguf", ".engine", ".onnx"))


def _unknown(model: str) -> ModelNotFound:
    if _is_path(model):
        return ModelNotFound(f"{model} doesn't exist.")
    close = difflib.get_close_matches(model.lower(), CATALOG, n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    return ModelNotFound(
        f"There is no model {model!r}.{hint} A model is one of {', '.join(CATALOG)}, a folder in Hugging Face's layout,"
        " a .gguf file, an engine file, or a hub id such as org/name."
    )
