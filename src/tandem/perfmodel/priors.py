"""Guesses of a step's cost before an engine has done anything, by kind of device. A dozen steps replace them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

DeviceKind = Literal["cpu", "gpu", "unknown"]


class StepCost(NamedTuple):
    """Seconds: of a step whatever is in it, for each token in it, for each sequence in it, and for each token of
    context that its sequences attend to."""

    base_s: float
    token_s: float
    sequence_s: float
    context_s: float


PRIORS: Final[dict[DeviceKind, StepCost]] = {
    "cpu": StepCost(20e-3, 1.5e-3, 2e-3, 1e-7),
    "gpu": StepCost(10e-3, 60e-6, 100e-6, 2e-9),
    "unknown": StepCost(15e-3, 200e-6, 200e-6, 1e-8),
}


def device_kind(devices: Sequence[str]) -> DeviceKind:
    """Of a pool's `devices`, such as "cpu:0-1" or "cuda:0"; unknown where somebody else runs the engine."""
    if not devices:
        return "unknown"
    return "cpu" if all(device.startswith("cpu") for device in devices) else "gpu"
