"""A model in Hugging Face's layout: config.json and safetensors, whole or in shards. Knows no network's arithmetic.

Code and pickles that such a folder may hold are never run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from safetensors import SafetensorError, safe_open

from tandem.core.errors import ModelDamaged, ModelNotFound, ModelUnsupported
from tandem.engine.loading.base import TextFiles
from tandem.engine.loading.expected import check_tensors
from tandem.engine.loading.hf_config import read_spec
from tandem.engine.loading.hf_tokens import end_token_ids, read_json
from tandem.engine.models.spec import ModelSpec

if TYPE_CHECKING:
    import torch

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
DTYPES = ("F64", "F32", "F16", "BF16")
WRAPPERS = (
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("model.language_model.", "model."),
)
"""How models that also see pictures prefix the names of their text half, and what the names are without."""
IGNORED = (".rotary_emb.inv_freq",)
"""Endings of layer tensors that hold nothing a computation needs."""


class Stored(NamedTuple):
    """Where a tensor lies: its file, and its name in there."""

    file: Path
    name: str
    shape: tuple[int, ...]


class FolderCheckpoint:
    """`Checkpoint` over a folder. Opening reads all shards' headers; `read` may be called from several threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        config = read_json(path / "config.json")
        tokenizer_config = read_json(path / "tokenizer_config.json")
        spec = read_spec(config)
        ends = end_token_ids(path, config, tokenizer_config, spec.vocab_size)
        self.spec = dataclasses.replace(spec, eos_token_ids=ends)
        self.text = TextFiles("folder", path, tokenizer_config.raw)
        self._stored = {_plain_name(stored.name): stored for file in _shards(path) for stored in _read_header(file)}
        found = {name: stored.shape for name, stored in self._stored.items()}
        self._shapes = check_tensors(self.spec, found, str(path))
        _refuse_unknown(self.spec, found.keys() - self._shapes.keys(), path)

    def names(self) -> frozenset[str]:
        return frozenset(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def read(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """The whole tensor in `dtype`, row-major, its own memory."""
        stored = self._stored[name]
        with _open(stored.file, "pt") as shard:
            mapped: torch.Tensor = shard.get_tensor(stored.name)
            return mapped.to(dtype, copy=True)


def _plain_name(name: str) -> str:
    for prefix, plain in WRAPPERS:
        if name.startswith(prefix):
            return plain + name.removeprefix(prefix)
    return name


def _shards(folder: Path) -> list[Path]:
    """The safetensors files that the index names, or the only one there is."""
    if (folder / INDEX).is_file():
        return _indexed_shards(folder)
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if any(folder.glob("*.bin")):
        raise ModelUnsupported(f"{folder} holds weights as pickles (.bin), which aren't loaded; use safetensors.")
    raise ModelNotFound(f"{folder} has neither {SINGLE} nor {INDEX}.")


def _indexed_shards(folder: Path) -> list[Path]:
    index = read_json(folder / INDEX)
    names: list[Any] = list(index.section("weight_map").raw.values())
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise ModelDamaged(f"{index.source}: weight_map names {name!r}, which isn't a file in the same folder.")
        if not (folder / name).is_file():
            raise ModelDamaged(f"{index.source} names the shard {name}, which is missing.")
    return [folder / name for name in sorted(set(names))]


def _open(file: Path, framework: str) -> Any:
    try:
        return safe_open(file, framework=framework)
    except SafetensorError as error:
        raise ModelDamaged(f"{file} is cut short or isn't a safetensors file: {error}.") from error
    except OSError as error:
        raise ModelDamaged(f"{file} can't be read: {error.strerror or error}.") from error


def _read_header(file: Path) -> Iterator[Stored]:
    with _open(file, "np") as shard:
        names: list[str] = shard.keys()
        for name in names:
            header = shard.get_slice(name)
            if header.get_dtype() not in DTYPES:
                raise ModelUnsupported(
                    f"{file}: tensor {name} has type {header.get_dtype()}; {', '.join(DTYPES)} are supported."
                )
            yield Stored(file, name, tuple(header.get_shape()))


def _refuse_unknown(spec: ModelSpec, names: set[str], folder: Path) -> None:
    """A weight in a layer that this network doesn't have (a bias, an expert) would be left out in silence."""
    for name in sorted(names):
        if name.startswith("model.layers.") and not name.endswith(IGNORED):
            raise ModelUnsupported(f"{folder}: tensor {name} isn't part of the {spec.family} network.")
