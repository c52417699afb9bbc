"""The packed weights of an engine for GPUs: every constant of its graphs, one behind another, as the graphs read them.

The part of the file is mapped and copied to the device in one piece; the constants are views of it there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from tandem.core.errors import ModelDamaged

CUDA_IMAGE_VERSION = 1
"""Of this layout and of the operators' constants: packed nibbles, joined products."""
ALIGNMENT = 256
"""In bytes: what a GPU's allocations have."""
_DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float32,
        torch.bfloat16,
        torch.float16,
        torch.float8_e4m3fn,
        torch.int64,
        torch.int32,
        torch.int8,
        torch.uint8,
    )
}


class ConstantEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Where a constant lies in the image."""

    name: str
    """As the graphs call it: `layers.0.qkv.codes`."""
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size_bytes: int


def pack_constants(constants: Mapping[str, Tensor]) -> tuple[Tensor, list[ConstantEntry]]:
    """uint8 on the host, and what is where. Tensors are taken as they are."""
    entries: list[ConstantEntry] = []
    size = 0
    for name, tensor in constants.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        assert dtype in _DTYPES, f"{name} is {dtype}"
        num_bytes = tensor.numel() * tensor.element_size()
        entries.append(
            ConstantEntry(name=name, dtype=dtype, shape=tuple(tensor.shape), offset=size, size_bytes=num_bytes)
        )
        size += -(-num_bytes // ALIGNMENT) * ALIGNMENT
    image = torch.zeros(size, dtype=torch.uint8)
    for entry, tensor in zip(entries, constants.values(), strict=True):
        _view(image, entry).copy_(tensor)
    return image, entries


def read_entries(graphs: Mapping[str, object], path: Path) -> list[ConstantEntry]:
    """From the manifest. Raises `ModelDamaged`."""
    try:
        return msgspec.convert(graphs["constants"], list[ConstantEntry])
    except (KeyError, msgspec.ValidationError) as error:
        raise ModelDamaged(f"{path} doesn't say where its graphs' constants lie ({error}). Build it again.") from error


def constants_on(device: torch.device, image: Tensor, entries: Sequence[ConstantEntry]) -> dict[str, Tensor]:
    """Views of one copy of the image on the device; on the host, of the image itself. Raises `ModelDamaged`."""
    for entry in entries:
        _check(entry, image.numel())
    there = image.to(device)
    return {entry.name: _view(there, entry) for entry in entries}


def _view(image: Tensor, entry: ConstantEntry) -> Tensor:
    return image[entry.offset : entry.offset + entry.size_bytes].view(_DTYPES[entry.dtype]).view(entry.shape)


def _check(entry: ConstantEntry, image_bytes: int) -> None:
    dtype = _DTYPES.get(entry.dtype)
    size = 0 if dtype is None else prod(entry.shape) * dtype.itemsize
    ends_inside = 0 <= entry.offset <= image_bytes - entry.size_bytes
    if dtype is None or size != entry.size_bytes or not ends_inside or entry.offset % ALIGNMENT:
        raise ModelDamaged(
            f"The image has {entry.name} as {entry.dtype} {list(entry.shape)} at {entry.offset}, which can't be. "
            "Build the engine again."
        )
