"""Rounds a matrix to 8-bit floats, E4M3: one scale a row."""

from __future__ import annotations

import torch
from torch import Tensor

from tandem.engine.quantization.matrix import QuantizedMatrix

LARGEST = 448.0
"""The largest number that E4M3 holds."""


def round_to_fp8(weights: Tensor) -> QuantizedMatrix:
    """weights [N, K]; each row's largest weight takes the largest number."""
    wide = weights.float()
    scale = wide.abs().amax(-1, keepdim=True) / LARGEST
    steps = torch.where(scale > 0, wide / scale, 0.0).clamp(-LARGEST, LARGEST)
    return QuantizedMatrix(steps.to(torch.float8_e4m3fn), scale, None, "fp8", "float")
