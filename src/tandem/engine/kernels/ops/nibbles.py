"""4-bit codes two a byte, as the GPU's products read them: kind "int4x2".

32 neighbouring codes of a row are 16 bytes: byte j has code j in its low half and code j + 16 in its high one. So both
halves of a tile of bytes are runs of neighbouring inputs, and no code has to be moved between threads.
"""

from __future__ import annotations

import torch
from torch import Tensor

PACKED = "int4x2"
UNIT = 32
"""Codes that are packed together; divides every group."""


def pack_nibbles(codes: Tensor) -> Tensor:
    """uint8 [N, K] of 0 … 15 → uint8 [N, K / 2]. K: a multiple of 32."""
    low, high = codes.view(len(codes), -1, 2, UNIT // 2).unbind(2)
    return (low | high << 4).flatten(1)


def unpack_nibbles(packed: Tensor) -> Tensor:
    """uint8 [N, K / 2] → uint8 [N, K]."""
    halves = packed.view(len(packed), -1, UNIT // 2)
    return torch.stack((halves & 15, halves >> 4), dim=2).flatten(1)
