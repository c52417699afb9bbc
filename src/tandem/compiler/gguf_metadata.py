"""Writes a GGUF file (version 3) that holds another one's metadata and no tensors. Knows no single key."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import numpy as np

from tandem.engine.loading.gguf import MAGIC, GGUFFile

_VERSION = 3
_KINDS: dict[str, tuple[int, str]] = {
    "uint8": (0, "<B"),
    "int8": (1, "<b"),
    "uint16": (2, "<H"),
    "int16": (3, "<h"),
    "uint32": (4, "<I"),
    "int32": (5, "<i"),
    "float32": (6, "<f"),
    "bool": (7, "<?"),
    "uint64": (10, "<Q"),
    "int64": (11, "<q"),
    "float64": (12, "<d"),
}
"""Type → its number in the file, its struct form."""
_STRING, _ARRAY = 8, 9


def metadata_only(file: GGUFFile) -> bytes:
    """The file without its tensors; `read_gguf` reads the same metadata from it."""
    head = struct.pack("<IIQQ", MAGIC, _VERSION, 0, len(file.metadata))
    entries = (_string(key) + _value(value, file.stored_as[key]) for key, value in file.metadata.items())
    return head + b"".join(entries)


def _value(value: Any, stored_as: str) -> bytes:
    if stored_as.endswith("[]"):
        return struct.pack("<I", _ARRAY) + _array(value, stored_as.removesuffix("[]"))
    if stored_as == "string":
        return struct.pack("<I", _STRING) + _string(value)
    number, form = _KINDS[stored_as]
    return struct.pack("<I", number) + struct.pack(form, value)


def _array(values: Any, stored_as: str) -> bytes:
    if stored_as == "string":
        return struct.pack("<IQ", _STRING, len(values)) + _strings(values)
    number, form = _KINDS[stored_as]
    return struct.pack("<IQ", number, len(values)) + np.asarray(values, np.dtype(form)).tobytes()


def _strings(texts: Iterable[str]) -> bytes:
    return b"".join(map(_string, texts))


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw
