"""Tiny models, plain and packed as other tools do it, written bit by bit from the formats' descriptions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.engine.models.tiny import llama_config, save_random

PRODUCTS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def plain_folder(folder: Path, **changes: Any) -> Path:
    """Llama with 2 layers, hidden size 64, 128 in the MLP, GQA."""
    save_random(llama_config(**{"num_hidden_layers": 2, "intermediate_size": 128} | changes), folder)
    return folder


def random_codes(rows: int, inputs: int, groups: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """4-bit codes [N, K], zeros and float16 scales [N, groups]."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 16, (rows, inputs), generator=generator)
    zeros = torch.randint(0, 16, (rows, groups), generator=generator)
    scales = (torch.rand(rows, groups, generator=generator) * 0.02 + 0.002).half()
    return codes, zeros, scales


def meant(codes: Tensor, zeros: Tensor, scales: Tensor) -> Tensor:
    """What every format stands for, computed one weight at a time where it matters: (code - zero) · scale."""
    groups = torch.arange(codes.shape[1]) // (codes.shape[1] // scales.shape[1])
    return (codes - zeros[:, groups]).float() * scales.float()[:, groups]


def word(fields: list[int], bits: int) -> int:
    """One int32 with the fields in it, lowest bits first."""
    value = sum(field << (bits * place) for place, field in enumerate(fields))
    return value - (1 << 32) if value >= 1 << 31 else value


def pack_rows(matrix: Tensor, bits: int, order: tuple[int, ...] | None = None) -> Tensor:
    """[R, C] → int32 [R, C · bits / 32]; place i of a word holds column order[i] of its own."""
    per_word = 32 // bits
    order = order or tuple(range(per_word))
    rows = [
        [word([row[at + order[i]] for i in range(per_word)], bits) for at in range(0, len(row), per_word)]
        for row in matrix.tolist()
    ]
    return torch.tensor(rows, dtype=torch.int32)


def repack(source: Path, target: Path, config: dict[str, Any], convert: Any) -> dict[str, Tensor]:
    """The plain folder with each layer's products replaced by convert(base name, shape, seed) → (tensors, meant).

    Returns name → the weights that the packed ones mean.
    """
    target.mkdir()
    settings = json.loads((source / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(settings | {"quantization_config": config}))
    tensors: dict[str, Tensor] = {}
    wanted: dict[str, Tensor] = {}
    for seed, (name, tensor) in enumerate(sorted(load_file(source / "model.safetensors").items())):
        if name.split(".")[-2] in PRODUCTS:
            parts, wanted[name] = convert(name.removesuffix("weight"), tensor.shape, seed)
            tensors |= parts
        else:
            tensors[name] = tensor
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, target / "model.safetensors")
    return wanted
