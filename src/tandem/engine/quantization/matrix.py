"""A weight matrix in few bits: what quantisers make, checkpoints bring, and kernels pack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Activations = Literal["float", "int8_token", "int8_group"]
"""What a product rounds its inputs to: nothing (beyond the kernel's own type); int8 with one scale a token (W8A8);
int8 with one scale for each 32 inputs of a token (how weight-only formats are multiplied in integers)."""


@dataclass(frozen=True, slots=True)
class QuantizedMatrix:
    """w [N outputs, K inputs]: w[n, k] = scale[n, g] · codes[n, k] + offset[n, g], where g = k // group_size.

    bits 4: codes are 0..15; bits 8: 0..255 (a signed weight plus 128). Both uint8, unpacked. A symmetric matrix has no
    `offset`, which stands for -scale · 2^(bits-1). kind "fp8": codes are float8_e4m3fn, w = scale · codes, no offset.
    """

    codes: Tensor
    """[N, K], uint8 (or float8_e4m3fn)."""
    scale: Tensor
    """[N, K / group_size], float32."""
    offset: Tensor | None
    """Like `scale`; None: symmetric."""
    kind: Literal["int8", "int4", "fp8"]
    activations: Activations

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1]

    @property
    def bits(self) -> int:
        return 4 if self.kind == "int4" else 8

    @property
    def group_size(self) -> int:
        """Inputs that share a scale; K where it is one scale a row ("by channel")."""
        return self.codes.shape[1] // self.scale.shape[1]

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """[N, K]: the weights that a product with this matrix stands for."""
        n, k = self.shape
        codes = self.codes.float().view(n, -1, self.group_size)
        weights = codes * self.scale.unsqueeze(-1)
        if self.kind != "fp8":
            offset = self.offset if self.offset is not None else self.scale * -float(1 << (self.bits - 1))
            weights = weights + offset.unsqueeze(-1)
        return weights.view(n, k).to(dtype)
