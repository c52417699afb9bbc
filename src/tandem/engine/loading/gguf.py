"""Reads the header of a GGUF file (versions 2 and 3, little endian) and maps its tensors. Knows no architecture.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The file is untrusted: every count is checked against
the bytes at hand before it is believed, and whatever is wrong becomes one `ModelDamaged` or `ModelUnsupported`.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandem.core.errors import ModelDamaged, ModelNotFound, ModelUnsupported
from tandem.engine.loading.gguf_cursor import Cursor
from tandem.engine.loading.gguf_types import OTHER_TYPES, TYPES, GGMLType

MAGIC = 0x46554747  # b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
ALIGNMENT_KEY = "general.alignment"
MAX_DIMS = 4

_UINT32, _UINT64 = struct.Struct("<I"), struct.Struct("<Q")
_SCALARS: dict[int, tuple[str, str]] = {
    0: ("uint8", "<B"),
    1: ("int8", "<b"),
    2: ("uint16", "<H"),
    3: ("int16", "<h"),
    4: ("uint32", "<I"),
    5: ("int32", "<i"),
    6: ("float32", "<f"),
    7: ("bool", "<?"),
    10: ("uint64", "<Q"),
    11: ("int64", "<q"),
    12: ("float64", "<d"),
}
"""Value type in the file → its name, its struct form. 8 is a string, 9 an array."""
_STRING, _ARRAY = 8, 9
_MIN_KEY_BYTES = 8 + 1 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8


class Value(NamedTuple):
    """A metadata value and how it was stored: `uint32`, `string`, `int32[]`, …"""

    value: Any
    stored_as: str


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One tensor's place in the file."""

    name: str
    shape: tuple[int, ...]
    """Row-major: slowest dimension first, the reverse of ggml's order."""
    type: GGMLType
    offset: int
    """Bytes from the start of the file."""
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """An open file. The mapping lives as long as this object or an array from `blocks`."""

    path: Path
    version: int
    metadata: dict[str, Any]
    """Key → number, bool, str, list of str, or numpy array of numbers."""
    stored_as: dict[str, str]
    """Key → type in the file: `uint32`, `string`, `int32[]`, …"""
    tensors: dict[str, GGUFTensor]
    _data: mmap.mmap

    def raw(self, name: str) -> memoryview:
        """The tensor's bytes as they lie in the file; read-only, not copied."""
        tensor = self.tensors[name]
        return memoryview(self._data)[tensor.offset : tensor.offset + tensor.num_bytes]

    def blocks(self, name: str) -> NDArray[np.uint8]:
        """The same bytes, [num_blocks, block_bytes]."""
        return np.frombuffer(self.raw(name), np.uint8).reshape(-1, self.tensors[name].type.block_bytes)


def read_gguf(path: Path) -> GGUFFile:
    """Map the file and read its header: about 0.1 s for a vocabulary of 262,144. Tensor data stays on disk."""
    data = _map(path)
    cursor = Cursor(data, str(path))
    version = _read_version(cursor)
    num_tensors = cursor.scalar(_UINT64, "the number of tensors")
    num_keys = cursor.scalar(_UINT64, "the number of metadata keys")
    values = _read_metadata(cursor, num_keys)
    alignment = _alignment(values, cursor.source)
    tensors = _read_tensors(cursor, num_tensors, alignment)
    metadata = {key: value.value for key, value in values.items()}
    stored_as = {key: value.stored_as for key, value in values.items()}
    return GGUFFile(path, version, metadata, stored_as, tensors, data)


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError as error:  # how mmap refuses a file of no bytes
        raise ModelDamaged(f"{path} is empty.") from error
    except OSError as error:
        raise ModelNotFound(f"{path} can't be read: {error.strerror or error}.") from error


def _read_version(cursor: Cursor) -> int:
    if cursor.scalar(_UINT32, "the magic number") != MAGIC:
        raise ModelDamaged(f"{cursor.source} isn't a GGUF file: it doesn't begin with 'GGUF'.")
    version: int = cursor.scalar(_UINT32, "the version")
    if version in VERSIONS:
        return version
    if int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS:
        raise ModelUnsupported(f"{cursor.source} is a big-endian GGUF; only little-endian ones are read.")
    raise ModelUnsupported(f"{cursor.source} is GGUF version {version}; versions 2 and 3 are read.")


def _read_metadata(cursor: Cursor, num_keys: int) -> dict[str, Value]:
    cursor.require(num_keys * _MIN_KEY_BYTES, f"metadata of {num_keys} keys")
    values: dict[str, Value] = {}
    for index in range(num_keys):
        key = cursor.string(f"the name of metadata key {index}")
        if not key:
            raise ModelDamaged(f"{cursor.source}: the name of metadata key {index} is empty.")
        if key in values:
            raise ModelDamaged(f"{cursor.source}: metadata key {key} occurs twice.")
        values[key] = _read_value(cursor, key)
    return values


def _read_value(cursor: Cursor, key: str) -> Value:
    kind = cursor.scalar(_UINT32, f"the type of {key}")
    if kind == _STRING:
        return Value(cursor.string(key), "string")
    if kind == _ARRAY:
        return _read_array(cursor, key)
    name, form = _scalar_type(kind, key, cursor.source)
    return Value(cursor.scalar(struct.Struct(form), key), name)


def _read_array(cursor: Cursor, key: str) -> Value:
    kind = cursor.scalar(_UINT32, f"the element type of {key}")
    count = cursor.scalar(_UINT64, f"the length of {key}")
    if kind == _STRING:
        return Value(cursor.strings(count, key), "string[]")
    if kind == _ARRAY:
        raise ModelUnsupported(f"{cursor.source}: {key} is an array of arrays, which Tandem doesn't read.")
    name, form = _scalar_type(kind, key, cursor.source)
    return Value(cursor.numbers(np.dtype(form), count, key), f"{name}[]")


def _scalar_type(kind: int, key: str, source: str) -> tuple[str, str]:
    if kind not in _SCALARS:
        raise ModelDamaged(f"{source}: {key} has value type {kind}, which doesn't exist.")
    return _SCALARS[kind]


def _alignment(values: dict[str, Value], source: str) -> int:
    """Every tensor begins at a multiple of this many bytes. A wrong one would shift all weights, so no guessing."""
    found = values.get(ALIGNMENT_KEY, Value(DEFAULT_ALIGNMENT, "uint32"))
    if found.stored_as != "uint32":
        raise ModelDamaged(f"{source}: {ALIGNMENT_KEY} is stored as {found.stored_as}; it must be uint32.")
    alignment: int = found.value
    if alignment < 8 or alignment & (alignment - 1):
        raise ModelDamaged(f"{source}: {ALIGNMENT_KEY} is {alignment}; it must be a power of two of at least 8.")
    return alignment


def _read_tensors(cursor: Cursor, num_tensors: int, alignment: int) -> dict[str, GGUFTensor]:
    cursor.require(num_tensors * _MIN_TENSOR_BYTES, f"a table of {num_tensors} tensors")
    found = [_read_tensor(cursor, index, alignment) for index in range(num_tensors)]
    data_start = -(-cursor.position // alignment) * alignment
    tensors: dict[str, GGUFTensor] = {}
    for name, shape, kind, offset in found:
        if name in tensors:
            raise ModelDamaged(f"{cursor.source}: two tensors have the name {name}.")
        num_bytes = kind.num_bytes(math.prod(shape))
        end = data_start + offset + num_bytes
        if end > cursor.size:
            raise ModelDamaged(
                f"{cursor.source} is cut short: tensor {name} ends at byte {end}, the file at byte {cursor.size}."
            )
        tensors[name] = GGUFTensor(name, shape, kind, data_start + offset, num_bytes)
    return tensors


class _Entry(NamedTuple):
    name: str
    shape: tuple[int, ...]
    type: GGMLType
    offset: int


def _read_tensor(cursor: Cursor, index: int, alignment: int) -> _Entry:
    name = cursor.string(f"the name of tensor {index}")
    shape = _read_shape(cursor, name)
    kind = _tensor_type(cursor.scalar(_UINT32, f"the type of tensor {name}"), name, cursor.source)
    offset = cursor.scalar(_UINT64, f"the offset of tensor {name}")
    if shape[-1] % kind.block_length:
        raise ModelDamaged(
            f"{cursor.source}: tensor {name} is {kind.name} with rows of {shape[-1]} elements;"
            f" rows must be a multiple of its block length, {kind.block_length}."
        )
    if offset % alignment:
        raise ModelDamaged(
            f"{cursor.source}: tensor {name} begins at offset {offset};"
            f" offsets must be multiples of the alignment, {alignment}."
        )
    return _Entry(name, shape, kind, offset)


def _read_shape(cursor: Cursor, name: str) -> tuple[int, ...]:
    num_dims = cursor.scalar(_UINT32, f"the number of dimensions of tensor {name}")
    if not 1 <= num_dims <= MAX_DIMS:
        raise ModelDamaged(f"{cursor.source}: tensor {name} has {num_dims} dimensions; 1 to {MAX_DIMS} are allowed.")
    dims = [cursor.scalar(_UINT64, f"a dimension of tensor {name}") for _ in range(num_dims)]
    if 0 in dims:
        raise ModelDamaged(f"{cursor.source}: tensor {name} has dimensions {dims}; none may be 0.")
    return tuple(reversed(dims))


def _tensor_type(number: int, name: str, source: str) -> GGMLType:
    if number in TYPES:
        return TYPES[number]
    known = OTHER_TYPES.get(number)
    shown = known if known else f"{number}, which is not known"
    readable = ", ".join(kind.name for kind in TYPES.values())
    raise ModelUnsupported(f"{source}: tensor {name} has type {shown}; Tandem reads {readable}.")
