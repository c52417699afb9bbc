"""How each file format says that rotary frequencies are stretched, as one `RopeScaling`. Computes no rotations.

Hugging Face names the method and its numbers. GGUF does so for linear scaling only; Llama 3.1's is stored as its
result, a divisor for each frequency (`rope_freqs.weight`), from which the numbers are found again here.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tandem.core.errors import ModelUnsupported
from tandem.engine.loading.values import Values
from tandem.engine.models.spec import RopeScaling

UNSCALED = ("default", "none")


def from_config(rope: Values) -> RopeScaling | None:
    """`rope_scaling` (transformers 4) or `rope_parameters` (5); the older spelling of `rope_type` is `type`."""
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind in UNSCALED:
        return None
    if kind == "linear":
        return RopeScaling(kind="linear", factor=rope.number("factor"))
    if kind == "llama3":
        return RopeScaling(
            kind="llama3",
            factor=rope.number("factor"),
            low_freq_factor=rope.number("low_freq_factor"),
            high_freq_factor=rope.number("high_freq_factor"),
            original_max_position=rope.integer("original_max_position_embeddings"),
        )
    raise ModelUnsupported(f"{rope.source}: rope type {kind} isn't supported; default, linear and llama3 are.")


def from_metadata(metadata: Values, architecture: str) -> RopeScaling | None:
    """What GGUF's `<architecture>.rope.scaling.*` say."""
    prefix = f"{architecture}.rope.scaling"
    kind = metadata.text(f"{prefix}.type", "none")
    if kind == "linear":
        return RopeScaling(kind="linear", factor=metadata.number(f"{prefix}.factor"))
    if kind not in UNSCALED:
        raise ModelUnsupported(f"{metadata.source}: {prefix}.type {kind} isn't supported; none and linear are.")
    if f"{architecture}.rope.scale_linear" in metadata:  # how files of 2023 said it
        return RopeScaling(kind="linear", factor=metadata.number(f"{architecture}.rope.scale_linear"))
    return None


def from_divisors(
    found: NDArray[np.float32], theta: float, original_max_position: int, source: str
) -> RopeScaling | None:
    """The scaling that gives these divisors, [head_dim / 2]; None if they are all one.

    The factor is the largest of them. The other numbers aren't in the file: they are Llama 3.1's own, and that they
    reproduce every divisor proves it.
    """
    if np.all(found == 1):
        return None
    guess = RopeScaling(kind="llama3", factor=float(found.max()), original_max_position=original_max_position)
    sane = bool(np.all(np.isfinite(found) & (found >= 1)))
    if not sane or not np.allclose(llama3_divisors(guess, theta, 2 * len(found)), found, rtol=1e-3):
        raise ModelUnsupported(
            f"{source}: the rotary divisors in rope_freqs.weight aren't those of Llama 3.1; no other kind is supported."
        )
    return guess


def llama3_divisors(scaling: RopeScaling, theta: float, head_dim: int) -> NDArray[np.float64]:
    """What Llama 3.1 divides each rotary frequency by, [head_dim / 2].

    Waves much shorter than the original context stay, those longer than it are stretched by `factor`, and between the
    two the frequency is interpolated. From Meta's llama-models, `apply_scaling` of its reference implementation.
    """
    wavelengths = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    turns = scaling.original_max_position / wavelengths
    span = scaling.high_freq_factor - scaling.low_freq_factor
    kept = np.clip((turns - scaling.low_freq_factor) / span, 0, 1)
    divisors: NDArray[np.float64] = 1 / ((1 - kept) / scaling.factor + kept)
    return divisors
