"""Turns ggml's quantised blocks back into floating point, with numpy. Knows no files and no names.

A kernel fills `out` [num_blocks, block_length] (float32) from `blocks` [num_blocks, block_bytes] (uint8). Layouts:
https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h. Each kernel multiplies and adds in ggml's order, so that
results are equal to the last bit. Kernels get a tensor in pieces: what they pass over several times stays in cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tandem.engine.loading import gguf_types as types
from tandem.engine.loading.gguf_types import GGMLType

if TYPE_CHECKING:
    import torch

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Kernel = Callable[[Bytes, Floats], None]

PIECE_LENGTH = 1 << 19
"""Elements a kernel gets at once: 2 MiB of float32. Measured best on 1 MiB of second-level cache, flat around it."""

SERIAL_LENGTH = 1 << 14
"""Elements that torch converts without waking its threads. On busy cores it waits for those ten times as long."""


def dequantise(blocks: Bytes, kind: GGMLType) -> Floats:
    """blocks [num_blocks, block_bytes] → float32 [num_blocks, block_length]."""
    out = np.empty((len(blocks), kind.block_length), np.float32)
    for part in _pieces(len(blocks), kind):
        _run(kind, blocks[part], out[part])
    return out


def dequantise_into(blocks: Bytes, kind: GGMLType, out: torch.Tensor) -> None:
    """Fill contiguous `out`, of any floating type and num_blocks · block_length elements, rounding to nearest even.

    About 1.5 ns an element on one core. Threads may do several tensors at once: numpy works without Python's lock.
    """
    import torch

    flat = out.view(-1)
    for part in _pieces(len(blocks), kind):
        floats = np.empty((part.stop - part.start, kind.block_length), np.float32)
        _run(kind, blocks[part], floats)
        source, start = torch.from_numpy(floats).view(-1), part.start * kind.block_length
        for at in range(0, floats.size, SERIAL_LENGTH):
            stop = min(at + SERIAL_LENGTH, floats.size)
            flat[start + at : start + stop].copy_(source[at:stop])


def _run(kind: GGMLType, blocks: Bytes, out: Floats) -> None:
    with np.errstate(all="ignore"):  # an infinite scale in a damaged file gives NaN, and needs no warning on top
        KERNELS[kind](blocks, out)


def _pieces(num_blocks: int, kind: GGMLType) -> Iterator[slice]:
    step = max(1, PIECE_LENGTH // kind.block_length)
    return (slice(start, min(start + step, num_blocks)) for start in range(0, num_blocks, step))


def _field(blocks: Bytes, start: int, dtype: DTypeLike, count: int = 1) -> NDArray[Any]:
    """`count` values of `dtype` from byte `start` of every block: [num_blocks, count]."""
    size = np.dtype(dtype).itemsize * count
    return np.ascontiguousarray(blocks[:, start : start + size]).view(dtype)


def _half(blocks: Bytes, start: int) -> Floats:
    """The float16 at byte `start` of every block: float32 [num_blocks, 1]."""
    return _field(blocks, start, "<f2").astype(np.float32)


# -- plain numbers


def _f32(blocks: Bytes, out: Floats) -> None:
    out[:] = _field(blocks, 0, "<f4")


def _f16(blocks: Bytes, out: Floats) -> None:
    out[:] = _field(blocks, 0, "<f2")


def _bf16(blocks: Bytes, out: Floats) -> None:
    # bfloat16 is the upper half of a float32.
    np.left_shift(_field(blocks, 0, "<u2"), 16, out=out.view(np.uint32), dtype=np.uint32)


# -- blocks of 32: a scale (and an offset) in front of the quantised values


def _nibbles(packed: Bytes, out: NDArray[Any]) -> None:
    """packed [n, 16] → out [n, 32]: first all low halves, then all high ones."""
    np.bitwise_and(packed, 15, out=out[:, :16], casting="unsafe")
    np.right_shift(packed, 4, out=out[:, 16:], casting="unsafe")


def _add_fifth_bits(blocks: Bytes, start: int, out: Floats) -> None:
    """Bit i of the 32-bit word at byte `start` is worth 16 in value i."""
    bits = np.unpackbits(blocks[:, start : start + 4], axis=1, bitorder="little")
    np.add(out, bits << 4, out=out)


def _q4_0(blocks: Bytes, out: Floats) -> None:
    _nibbles(blocks[:, 2:], out)
    out -= 8
    out *= _half(blocks, 0)


def _q4_1(blocks: Bytes, out: Floats) -> None:
    _nibbles(blocks[:, 4:], out)
    out *= _half(blocks, 0)
    out += _half(blocks, 2)


def _q5_0(blocks: Bytes, out: Floats) -> None:
    _nibbles(blocks[:, 6:], out)
    _add_fifth_bits(blocks, 2, out)
    out -= 16
    out *= _half(blocks, 0)


def _q5_1(blocks: Bytes, out: Floats) -> None:
    _nibbles(blocks[:, 8:], out)
    _add_fifth_bits(blocks, 4, out)
    out *= _half(blocks, 0)
    out += _half(blocks, 2)


def _q8_0(blocks: Bytes, out: Floats) -> None:
    out[:] = blocks[:, 2:].view(np.int8)
    out *= _half(blocks, 0)


# -- blocks of 256, in 8 groups of 32 or 16 of 16: scales that are themselves quantised, under one scale a block


def _bit_planes(packed: Bytes, width: int, num_bits: int) -> Bytes:
    """Fields of `num_bits`, lowest first: packed [n, m] → [n, m // width, 8 // num_bits, width]."""
    shifts = np.arange(0, 8, num_bits, dtype=np.uint8)[:, None]
    planes = packed.reshape(len(packed), -1, 1, width) >> shifts
    planes &= np.uint8((1 << num_bits) - 1)
    return planes


def _six_bit_pairs(packed: Bytes) -> tuple[Floats, Floats]:
    """The 12 bytes of Q4_K and Q5_K: 8 scales and 8 offsets of six bits, each [n, 8, 1].

    Bytes 0–3 and 4–7 hold the first four of each, and in their two top bits the top bits of the last four, whose low
    halves share bytes 8–11.
    """
    scales, offsets, shared = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    last_scales = (shared & 15) | (scales >> 6 << 4)
    last_offsets = (shared >> 4) | (offsets >> 6 << 4)
    both = np.hstack([scales & 63, last_scales, offsets & 63, last_offsets]).astype(np.float32)
    return both[:, :8, None], both[:, 8:, None]


def _scale_and_shift(blocks: Bytes, groups: Floats) -> None:
    """groups [n, 8, 32] of Q4_K or Q5_K, in place: scale · value - offset."""
    scales, offsets = _six_bit_pairs(blocks[:, 4:16])
    groups *= _half(blocks, 0)[:, :, None] * scales
    groups -= _half(blocks, 2)[:, :, None] * offsets


def _q2_k(blocks: Bytes, out: Floats) -> None:
    groups = out.reshape(-1, 16, 16)
    groups[:] = _bit_planes(blocks[:, 16:80], 32, 2).reshape(groups.shape)
    groups *= (_half(blocks, 80) * (blocks[:, :16] & 15))[:, :, None]
    groups -= (_half(blocks, 82) * (blocks[:, :16] >> 4))[:, :, None]


def _q3_k(blocks: Bytes, out: Floats) -> None:
    groups = out.reshape(-1, 16, 16)
    groups[:] = _bit_planes(blocks[:, 32:96], 32, 2).reshape(groups.shape)
    # A clear bit in the mask means 4 less.
    groups += (_bit_planes(blocks[:, :32], 32, 1) << 2).reshape(groups.shape)
    groups -= 4
    low = _bit_planes(blocks[:, 96:104], 8, 4).reshape(-1, 16)
    high = _bit_planes(blocks[:, 104:108], 4, 2).reshape(-1, 16)
    scales = (low | (high << 4)).astype(np.float32) - np.float32(32)
    groups *= (_half(blocks, 108) * scales)[:, :, None]


def _q4_k(blocks: Bytes, out: Floats) -> None:
    groups = out.reshape(-1, 8, 32)
    groups[:] = _bit_planes(blocks[:, 16:], 32, 4).reshape(groups.shape)
    _scale_and_shift(blocks, groups)


def _q5_k(blocks: Bytes, out: Floats) -> None:
    groups = out.reshape(-1, 8, 32)
    groups[:] = _bit_planes(blocks[:, 48:], 32, 4).reshape(groups.shape)
    groups += (_bit_planes(blocks[:, 16:48], 32, 1) << 4).reshape(groups.shape)
    _scale_and_shift(blocks, groups)


def _q6_k(blocks: Bytes, out: Floats) -> None:
    groups = out.reshape(-1, 16, 16)
    groups[:] = _bit_planes(blocks[:, :128], 64, 4).reshape(groups.shape)
    groups += (_bit_planes(blocks[:, 128:192], 32, 2) << 4).reshape(groups.shape)
    groups -= 32
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32)
    groups *= (_half(blocks, 208) * scales)[:, :, None]


KERNELS: dict[GGMLType, Kernel] = {
    types.F32: _f32,
    types.F16: _f16,
    types.BF16: _bf16,
    types.Q4_0: _q4_0,
    types.Q4_1: _q4_1,
    types.Q5_0: _q5_0,
    types.Q5_1: _q5_1,
    types.Q8_0: _q8_0,
    types.Q2_K: _q2_k,
    types.Q3_K: _q3_k,
    types.Q4_K: _q4_k,
    types.Q5_K: _q5_k,
    types.Q6_K: _q6_k,
}
