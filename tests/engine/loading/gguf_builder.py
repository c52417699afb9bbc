"""Writes GGUF files byte by byte, so that tests can also write wrong ones."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

FORMS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
UINT8, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 0, 4, 5, 6, 7, 8, 9
F32, Q8_0 = 0, 8


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def number(kind: int, value: float) -> bytes:
    return struct.pack("<" + FORMS[kind], value)


@dataclass
class GGUFBuilder:
    """Collects keys and tensors; `num_keys` and `num_tensors` override the counts in the header."""

    version: int = 3
    alignment: int = 32
    num_keys: int | None = None
    num_tensors: int | None = None
    keys: list[bytes] = field(default_factory=list)
    infos: list[bytes] = field(default_factory=list)
    data: bytes = b""

    def key(self, name: str, kind: int, value: float | str) -> GGUFBuilder:
        raw = string(value) if isinstance(value, str) else number(kind, value)
        self.keys.append(string(name) + struct.pack("<I", kind) + raw)
        return self

    def array(self, name: str, kind: int, values: Sequence[float | str], count: int | None = None) -> GGUFBuilder:
        raw = b"".join(string(value) if isinstance(value, str) else number(kind, value) for value in values)
        head = struct.pack("<IIQ", ARRAY, kind, len(values) if count is None else count)
        self.keys.append(string(name) + head + raw)
        return self

    def tensor(self, name: str, dims: list[int], kind: int, data: bytes, offset: int | None = None) -> GGUFBuilder:
        """`dims` in ggml's order: fastest first."""
        self.data += b"\0" * (-len(self.data) % self.alignment)
        at = len(self.data) if offset is None else offset
        shape = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        self.infos.append(string(name) + shape + struct.pack("<IQ", kind, at))
        self.data += data
        return self

    def floats(self, name: str, values: list[float]) -> GGUFBuilder:
        return self.tensor(name, [len(values)], F32, struct.pack(f"<{len(values)}f", *values))

    def build(self) -> bytes:
        num_tensors = len(self.infos) if self.num_tensors is None else self.num_tensors
        num_keys = len(self.keys) if self.num_keys is None else self.num_keys
        head = b"GGUF" + struct.pack("<IQQ", self.version, num_tensors, num_keys) + b"".join(self.keys + self.infos)
        return head + b"\0" * (-len(head) % self.alignment) + self.data

    def write(self, path: Path) -> Path:
        path.write_bytes(self.build())
        return path
