"""What every model source gives: the network's shape, its tensors by Hugging Face's names, and its text files.

The two implementations are `folder.py` (Hugging Face layout, safetensors) and `gguf_checkpoint.py`. Opening one reads
headers only, and needs no torch; tensors are read, and dequantised, one by one when asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from tandem.engine.models.spec import ModelSpec

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class TextFiles:
    """Where the tokenizer comes from. `values` is tokenizer_config.json, or the GGUF's metadata."""

    kind: Literal["folder", "gguf"]
    path: Path
    """The folder that holds tokenizer.json, or the .gguf file."""
    values: Mapping[str, Any]


class Checkpoint(Protocol):
    """An opened model. Raises `ModelError`s; never returns a tensor of the wrong shape."""

    path: Path
    spec: ModelSpec
    text: TextFiles

    def names(self) -> frozenset[str]:
        """Tensor names as in Hugging Face's layout: `model.layers.0.self_attn.q_proj.weight`, `lm_head.weight`, …"""
        ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def read(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """The whole tensor, dequantised, in `dtype`, row-major, its own memory."""
        ...
