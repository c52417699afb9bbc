"""ggml's blocks of 32 as they lie in a GGUF, seen as a `QuantizedMatrix`: the same weights to the last bit.

Layouts: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tandem.engine.loading import gguf_types as types
from tandem.engine.loading.gguf_types import GGMLType
from tandem.engine.quantization.matrix import QuantizedMatrix

EXACT = (types.Q4_0, types.Q4_1, types.Q8_0)
PLAIN = (types.F32, types.F16, types.BF16)
GROUP = 32


def matrix_of_blocks(blocks: NDArray[np.uint8], kind: GGMLType, num_rows: int) -> QuantizedMatrix:
    """blocks [num_blocks, block_bytes] of one of the `EXACT` types; rows are whole blocks."""
    scale = _halves(blocks, 0, num_rows)
    if kind is types.Q8_0:
        codes = (blocks[:, 2:] ^ 0x80).reshape(num_rows, -1)  # two's complement plus 128
        return QuantizedMatrix(torch.from_numpy(codes), scale, None, "int8", "int8_group")
    offset = _halves(blocks, 2, num_rows) if kind is types.Q4_1 else None
    packed = blocks[:, 2 if offset is None else 4 :]
    codes = np.concatenate((packed & 15, packed >> 4), axis=1).reshape(num_rows, -1)
    return QuantizedMatrix(torch.from_numpy(codes), scale, offset, "int4", "int8_group")


def _halves(blocks: NDArray[np.uint8], start: int, num_rows: int) -> Tensor:
    halves = np.ascontiguousarray(blocks[:, start : start + 2]).view("<f2").astype(np.float32)
    return torch.from_numpy(halves.reshape(num_rows, -1))
