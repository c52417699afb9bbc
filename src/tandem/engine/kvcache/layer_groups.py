"""Layer groups: layers whose KV is kept alike, and so share a block table.

All groups have the same number of layers, so that a block of any group takes the same bytes and one pool serves all.
A model with 3 global and 15 windowed layers has 6 groups of 3: one that keeps everything, five that keep a window.
Layer j of every group stores in the same tensor (pool layer j); the blocks tell the groups apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """`layers` in order of depth; `window` in tokens, the token itself included, or None for the full context."""

    layers: tuple[int, ...]
    window: int | None


def group_layers(windows: Sequence[int | None]) -> tuple[LayerGroup, ...]:
    """Groups for a model whose layer i has `windows[i]`. Full-context groups come first.

    The size of all groups is that of the smallest kind of layer; the last group of a kind may have fewer layers, which
    leaves some of its blocks' bytes unused.
    """
    kinds: dict[int | None, list[int]] = {}
    for layer, window in enumerate(windows):
        kinds.setdefault(window, []).append(layer)
    size = min(len(layers) for layers in kinds.values())
    groups = [
        LayerGroup(tuple(layers[start : start + size]), window)
        for window, layers in sorted(kinds.items(), key=lambda kind: (kind[0] is not None, kind[0] or 0))
        for start in range(0, len(layers), size)
    ]
    return tuple(groups)


def first_needed_block(window: int | None, num_computed_tokens: int, block_size: int) -> int:
    """Index of the first block that the token at position `num_computed_tokens` still attends to."""
    if window is None:
        return 0
    return max(0, num_computed_tokens - window + 1) // block_size
