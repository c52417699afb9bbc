"""Weights that a checkpoint already holds in few bits, taken as they are: "as-is", and other people's files."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from tandem.core.errors import ConfigError
from tandem.engine.loading.base import Checkpoint
from tandem.engine.quantization.matching import matched
from tandem.engine.quantization.matrix import QuantizedMatrix
from tandem.engine.quantization.rounding import round_matrix

GROUP = 32


@runtime_checkable
class StoresQuantized(Protocol):
    """A checkpoint that can hand out weights in few bits."""

    def stored_matrix(self, name: str) -> QuantizedMatrix | None:
        """The matrix as stored; None where it is in another form that `stored_kind` names."""
        ...

    def stored_kind(self, name: str) -> str:
        """As the file names it: `Q4_1`, `Q6_K`, `F16`, `awq`, …"""
        ...


PLAIN = ("F32", "F16", "BF16", "F64")


class StoredWeights:
    """Reads a checkpoint's weights as they are; keeps count of those that had to be rounded again."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        if not isinstance(checkpoint, StoresQuantized):
            raise _nothing_stored(checkpoint)
        self._checkpoint = checkpoint
        self._read = checkpoint.read
        self.rerounded: dict[str, int] = {}
        """Type in the file → how many matrices of it became int8 in groups of 32."""
        self.num_exact = 0

    def matrix(self, name: str) -> QuantizedMatrix | Tensor:
        stored = self._checkpoint.stored_matrix(name)
        if stored is not None:
            self.num_exact += 1
            return stored
        kind = self._checkpoint.stored_kind(name)
        if kind in PLAIN:
            return self._read(name, torch.bfloat16)
        self.rerounded[kind] = self.rerounded.get(kind, 0) + 1
        return _as_int8(self._read(name, torch.float32))

    def together(self, names: list[str]) -> list[QuantizedMatrix | Tensor]:
        """Matrices that will lie in one product: all of one form."""
        found = [self.matrix(name) for name in names]
        if all(isinstance(one, Tensor) for one in found):
            return found
        kinds = {one.kind for one in found if isinstance(one, QuantizedMatrix)}
        if len(kinds) > 1 and "fp8" in kinds:
            found = [one.dequantize() if isinstance(one, QuantizedMatrix) else one for one in found]
        matrices = [one if isinstance(one, QuantizedMatrix) else _as_int8(one.float()) for one in found]
        return list(matched(matrices))

    def check_any(self) -> None:
        """After all have been read: there must have been something."""
        if not self.num_exact and not self.rerounded:
            raise _nothing_stored(self._checkpoint)

    @property
    def notes(self) -> list[str]:
        return [
            f"{count} matrices of type {kind} were rounded again, to int8 in groups of {GROUP}"
            for kind, count in sorted(self.rerounded.items())
        ]


def _as_int8(weights: Tensor) -> QuantizedMatrix:
    size = GROUP if weights.shape[1] % GROUP == 0 else weights.shape[1]
    return round_matrix(weights, "int8", size, symmetric=True, activations="int8_group", search=False)


def _nothing_stored(checkpoint: object) -> ConfigError:
    path = getattr(checkpoint, "path", "the model")
    return ConfigError(
        f"{path} isn't quantised, so that precision as-is means nothing; take bf16, int8, int4, awq, w8a8 or"
        " smoothquant."
    )
