"""Whether an operator runs its Triton kernel: on a GPU, and on the CPU where Triton's interpreter was asked for."""

from __future__ import annotations

import os
from functools import lru_cache

from torch import Tensor

from tandem.engine.kernels.triton import unavailable_reason


@lru_cache
def _has_triton() -> bool:
    return unavailable_reason() is None


def on_triton(tensor: Tensor) -> bool:
    return (tensor.is_cuda or os.environ.get("TRITON_INTERPRET") == "1") and _has_triton()
