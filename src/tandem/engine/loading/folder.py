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
from tandem.engine.loading.expected import check_tensors, expected_tensors
from tandem.engine.loading.hf_config import read_spec
from tandem.engine.loading.hf_tokens import end_token_ids, read_json
from tandem.engine.models.spec import ModelSpec
from tandem.engine.quantization.packed import DTYPES as PACKED_DTYPES
from tandem.engine.quantization.packed import PackedFormat, packed_format

if TYPE_CHECKING:
    import torch

    from tandem.engine.quantization.matrix import QuantizedMatrix

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
    dtype: str


class Packed(NamedTuple):
    """A weight that another tool has packed into several tensors: ending → name, and the weight's own shape."""

    parts: dict[str, str]
    shape: tuple[int, int]


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
        self._format = packed_format(config)
        dtypes = DTYPES if self._format is None else DTYPES + PACKED_DTYPES
        self._stored = {_plain_name(s.name): s for file in _shards(path) for s in _read_header(file, dtypes)}
        self._packed = {} if self._format is None else self._find_packed(self._format)
        found = {name: stored.shape for name, stored in self._stored.items()}
        found |= {name: weight.shape for name, weight in self._packed.items()}
        self._shapes = check_tensors(self.spec, found, str(path))
        parts = {part for weight in self._packed.values() for part in weight.parts.values()}
        _refuse_unknown(self.spec, found.keys() - self._shapes.keys() - parts, path)

    def names(self) -> frozenset[str]:
        return frozenset(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def read(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """The whole tensor in `dtype`, dequantised, row-major, its own memory."""
        matrix = self.stored_matrix(name)
        return self._load(name).to(dtype, copy=True) if matrix is None else matrix.dequantize(dtype)

    def stored_kind(self, name: str) -> str:
        """The type in the file, `BF16`, or how another tool has packed it: `awq`, `pack-quantized`, …"""
        if name in self._packed:
            assert self._format is not None
            return self._format.kind
        return self._stored[name].dtype

    def stored_matrix(self, name: str) -> QuantizedMatrix | None:
        """A packed weight in the bits it is stored in; None for plain ones."""
        if name not in self._packed:
            return None
        from tandem.engine.quantization.unpacking import unpack

        assert self._format is not None
        weight = self._packed[name]
        parts = {ending: self._load(part) for ending, part in weight.parts.items()}
        return unpack(self._format, parts, weight.shape, f"{self.path}: tensor {name}")

    def _load(self, name: str) -> torch.Tensor:
        stored = self._stored[name]
        with _open(stored.file, "pt") as shard:
            mapped: torch.Tensor = shard.get_tensor(stored.name)
            return mapped

    def _find_packed(self, form: PackedFormat) -> dict[str, Packed]:
        """The weights of this network that are stored packed."""
        found: dict[str, Packed] = {}
        for name, _ in expected_tensors(self.spec):
            parts = form.parts(name, self._stored)
            if parts:
                shapes = {ending: self._stored[part].shape for ending, part in parts.items()}
                n, k = form.shape(name, shapes, str(self.path))
                found[name] = Packed(parts, (n, k))
        return found


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


def _read_header(file: Path, dtypes: tuple[str, ...]) -> Iterator[Stored]:
    with _open(file, "np") as shard:
        names: list[str] = shard.keys()
        for name in names:
            header = shard.get_slice(name)
            if header.get_dtype() not in dtypes:
                raise ModelUnsupported(
                    f"{file}: tensor {name} has type {header.get_dtype()}; {', '.join(dtypes)} are supported."
                )
            yield Stored(file, name, tuple(header.get_shape()), header.get_dtype())


def _refuse_unknown(spec: ModelSpec, names: set[str], folder: Path) -> None:
    """A weight in a layer that this network doesn't have (a bias, an expert) would be left out in silence."""
    for name in sorted(names):
        if name.startswith("model.layers.") and not name.endswith(IGNORED):
            raise ModelUnsupported(f"{folder}: tensor {name} isn't part of the {spec.family} network.")
