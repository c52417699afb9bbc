"""Where `triton` enters Tandem: the one guarded import, typed loosely because Triton ships no types.

Kernels call `tl` as Triton's compiler wants it: a module found among a kernel's globals.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tandem.core.errors import ConfigError

try:
    import triton as _triton  # type: ignore[import-untyped,import-not-found,unused-ignore]
    import triton.language as _language  # type: ignore[import-untyped,import-not-found,unused-ignore]
except ImportError as error:
    raise ConfigError(
        f"The Triton kernels need the package triton, which can't be imported ({error}). It comes with torch's builds "
        "for CUDA and ROCm; install one of them, or run on the CPU: --device cpu."
    ) from error

jit: Any = _triton.jit
tl: Any = _language
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Triton decides when a kernel is defined, so it can't change afterwards."""


class PagedKV(NamedTuple):
    """KV memory of one layer of every group. Whoever made it owns it; kernels write into it and keep nothing."""

    data: Tensor
    """[2, blocks, K, block_size, D], keys then values: float32, bfloat16, float16 or int8."""
    scales: Tensor | None = None
    """float32 [2, blocks, K, block_size] for int8: a number's value is itself times its token's and head's scale."""


def make_kv(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> PagedKV:
    """Memory as it comes: a slot is read only after it was written."""
    data = torch.empty(shape, dtype=dtype, device=device)
    return PagedKV(data, torch.empty(shape[:-1], device=device) if dtype == torch.int8 else None)


def power_of_two(least: int) -> int:
    """The smallest power of two that is not below `least` ≥ 1: Triton's tiles have such sides."""
    return 1 << (least - 1).bit_length()


@lru_cache
def num_processors(device: torch.device) -> int:
    """Multiprocessors of a GPU; a small number for the interpreter, so that its tests meet every path."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4
