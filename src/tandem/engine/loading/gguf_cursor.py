"""Steps forward through a mapped file, field by field; no step leaves it. Knows byte order and strings, not GGUF.

Counts and lengths come from a file that may be damaged or hostile. They are Python integers, so they don't wrap, and
each is compared with the bytes that remain before anything of that size is allocated.
"""

from __future__ import annotations

import mmap
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.core.errors import ModelDamaged

LENGTH = struct.Struct("<Q")


class Cursor:
    """A position in `data`; `source` is the file's name for errors, which are all `ModelDamaged`."""

    __slots__ = ("_data", "position", "size", "source")

    def __init__(self, data: mmap.mmap, source: str) -> None:
        self._data = data
        self.source = source
        self.size = len(data)
        self.position = 0

    def scalar(self, form: struct.Struct, field: str) -> Any:
        """One number of struct `form`."""
        self.require(form.size, field)
        (value,) = form.unpack_from(self._data, self.position)
        self.position += form.size
        return value

    def string(self, field: str) -> str:
        """A 64-bit length in bytes and that much UTF-8."""
        length = self.scalar(LENGTH, f"the length of {field}")
        self.require(length, field)
        start = self.position
        self.position += length
        return self._decode(self._data[start : self.position], field)

    def strings(self, count: int, field: str) -> list[str]:
        """`count` strings. A vocabulary has 262,144 of them, so this loop does without a call per string."""
        self.require(count * LENGTH.size, field)
        data, size, position = self._data, self.size, self.position
        unpack, step = LENGTH.unpack_from, LENGTH.size
        pieces: list[bytes] = []
        for _ in range(count):
            start = position + step
            position = start + unpack(data, position)[0] if start <= size else start
            if position > size:
                self.position = start - step
                raise self.too_short(position - self.position, f"string {len(pieces)} of {field}")
            pieces.append(data[start:position])
        self.position = position
        return self._decode_all(pieces, field)

    def numbers(self, dtype: np.dtype[Any], count: int, field: str) -> NDArray[Any]:
        """`count` numbers as an array with its own memory."""
        num_bytes = count * dtype.itemsize
        self.require(num_bytes, field)
        start = self.position
        self.position += num_bytes
        return np.frombuffer(self._data[start : self.position], dtype=dtype)

    def require(self, num_bytes: int, field: str) -> None:
        """Raise unless `num_bytes` more bytes are there."""
        if num_bytes > self.size - self.position:
            raise self.too_short(num_bytes, field)

    def too_short(self, num_bytes: int, field: str) -> ModelDamaged:
        left = self.size - self.position
        return ModelDamaged(f"{self.source}: {field} would take {num_bytes} bytes, but the file has only {left} left.")

    def _decode(self, piece: bytes, field: str) -> str:
        return self._decode_all([piece], field)[0]

    def _decode_all(self, pieces: list[bytes], field: str) -> list[str]:
        try:
            return [piece.decode() for piece in pieces]
        except UnicodeDecodeError as error:
            raise ModelDamaged(f"{self.source}: {field} holds text that isn't UTF-8.") from error
