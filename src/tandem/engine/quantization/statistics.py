"""What calibration keeps of a product's inputs: how large each channel is, and how channels go together."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class InputStatistics:
    """Of inputs [T, K]. Tokens whose inputs are far larger than most count no more than those."""

    mean: Tensor
    """[K]: mean magnitude."""
    gram: Tensor
    """[K, K]: mean outer product. An error E in the weights costs trace(E · gram · Eᵀ) in the outputs."""

    @property
    def importance(self) -> Tensor:
        """[K]: mean square."""
        return self.gram.diagonal()

    def rescaled(self, factor: Tensor) -> InputStatistics:
        """Of inputs that are divided by factor [K]."""
        return InputStatistics(self.mean / factor, self.gram / factor / factor[:, None])

    def cost(self, error: Tensor) -> float:
        """Mean square of what an error in the weights, [N, K], changes in the outputs, all outputs together."""
        return float(((error @ self.gram) * error).sum())


def statistics_of(inputs: Tensor) -> InputStatistics:
    wide = inputs.float()
    energy = wide.square().sum(-1, keepdim=True)
    weigh = (energy.median() / energy.clamp(min=1e-12)).clamp(max=1.0).sqrt()
    tempered = wide * weigh
    gram = torch.zeros(wide.shape[1], wide.shape[1]).addmm_(tempered.T, tempered)
    return InputStatistics(tempered.abs().mean(0), gram / len(wide))
