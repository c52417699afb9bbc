"""Every block type, byte for byte against the `gguf` package, on random bits."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from tandem.engine.loading import gguf_dequant
from tandem.engine.loading.gguf_dequant import KERNELS, dequantise, dequantise_into
from tandem.engine.loading.gguf_types import TYPES, GGMLType


def random_blocks(kind: GGMLType, count: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    return np.random.default_rng(5).integers(0, 256, (count, kind.block_bytes), dtype=np.uint8)


@pytest.mark.parametrize("kind", KERNELS, ids=lambda kind: kind.name)
def test_equal_to_the_reference_to_the_last_bit(kind: GGMLType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_dequant, "PIECE_LENGTH", 1000)  # not a divisor of anything
    blocks = random_blocks(kind, 999)
    with np.errstate(all="ignore"):  # random scales include infinities
        wanted = gguf.quants.dequantize(blocks.reshape(-1), gguf.GGMLQuantizationType[kind.name])
    found = dequantise(blocks, kind)
    assert found.shape == (999, kind.block_length)
    assert np.array_equal(found.reshape(-1).view(np.uint32), np.asarray(wanted).reshape(-1).view(np.uint32))


@pytest.mark.parametrize("number", TYPES)
def test_sizes_are_those_of_the_format(number: int) -> None:
    kind = TYPES[number]
    assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(number)] == (kind.block_length, kind.block_bytes)
    assert gguf.GGMLQuantizationType(number).name == kind.name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KERNELS, ids=lambda kind: kind.name)
def test_into_a_tensor_rounds_to_nearest(kind: GGMLType, dtype: torch.dtype) -> None:
    blocks = random_blocks(kind, 64)
    out = torch.empty((8, 8 * kind.block_length), dtype=dtype)
    dequantise_into(blocks, kind, out)
    wanted = torch.from_numpy(dequantise(blocks, kind)).to(dtype).reshape(out.shape)
    assert torch.equal(out.nan_to_num(), wanted.nan_to_num())
