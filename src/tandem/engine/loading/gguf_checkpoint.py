"""A model in a GGUF file, seen as Hugging Face's layout: names, row order and shapes. Knows no single quantisation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tandem.core.errors import ModelUnsupported
from tandem.engine.loading.base import TextFiles
from tandem.engine.loading.expected import check_tensors, expected_tensors
from tandem.engine.loading.gguf import read_gguf
from tandem.engine.loading.gguf_dequant import Bytes, dequantise_into
from tandem.engine.loading.gguf_names import gguf_name, is_interleaved
from tandem.engine.loading.gguf_spec import read_spec
from tandem.engine.loading.gguf_types import GGMLType

if TYPE_CHECKING:
    import torch

    from tandem.engine.quantization.matrix import QuantizedMatrix


IGNORED = ("attn_rot_embd.weight",)
"""Endings of layer tensors that hold nothing a computation needs."""


class GGUFCheckpoint:
    """`Checkpoint` over one .gguf file. Opening takes about 0.1 s; `read` may be called from several threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = read_gguf(path)
        self.spec = read_spec(self._file)
        self.text = TextFiles("gguf", path, self._file.metadata)
        self._stored_names = {name: gguf_name(name, self.spec.family) for name, _ in expected_tensors(self.spec)}
        self._shapes = self._check_shapes()
        self._refuse_unknown()

    def names(self) -> frozenset[str]:
        return frozenset(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def read(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """The whole tensor, dequantised, in `dtype`, row-major, its own memory."""
        import torch

        blocks, kind = self._blocks(name)
        out = torch.empty(self._shapes[name], dtype=dtype)
        dequantise_into(blocks, kind, out)
        return out

    def stored_kind(self, name: str) -> str:
        """The type in the file: `Q4_1`, `F32`, …"""
        return self._file.tensors[self._stored_names[name]].type.name

    def stored_matrix(self, name: str) -> QuantizedMatrix | None:
        """The same weights in the bits they are stored in; None for types that no `QuantizedMatrix` can be."""
        from tandem.engine.quantization.gguf_blocks import EXACT, matrix_of_blocks

        blocks, kind = self._blocks(name)
        return matrix_of_blocks(blocks, kind, self._shapes[name][0]) if kind in EXACT else None

    def _blocks(self, name: str) -> tuple[Bytes, GGMLType]:
        """The tensor's bytes with rows in Hugging Face's order, and what they mean."""
        stored = self._file.tensors[self._stored_names[name]]
        blocks = self._file.blocks(stored.name)
        if is_interleaved(name, self.spec.family):
            blocks = deinterleave(blocks, self._shapes[name][0], self.spec.head_dim)
        return blocks, stored.type

    def _check_shapes(self) -> dict[str, tuple[int, ...]]:
        tensors, names = self._file.tensors, self._stored_names
        found = {name: tensors[stored].shape for name, stored in names.items() if stored in tensors}
        return check_tensors(self.spec, found, str(self.path), names.__getitem__)

    def _refuse_unknown(self) -> None:
        """A weight in a layer that this network doesn't have (a bias, an expert) would be left out in silence."""
        known = set(self._stored_names.values())
        for name in self._file.tensors:
            if name.startswith("blk.") and name not in known and not name.endswith(IGNORED):
                raise ModelUnsupported(f"{self.path}: tensor {name} isn't part of the {self.spec.family} network.")


def deinterleave(blocks: Bytes, num_rows: int, head_dim: int) -> Bytes:
    """Rows of llama's q or k, from GGUF's order to Hugging Face's; done on quantised rows, since rows are whole blocks.

    GGUF puts the two rows that RoPE turns together side by side (0, 1, 2, 3 …), Hugging Face half a head apart
    (0, 2, 4, …, then 1, 3, 5, …). [num_blocks, block_bytes] in and out.
    """
    pairs = blocks.reshape(num_rows // head_dim, head_dim // 2, 2, -1)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(blocks.shape)
