"""How good a build for a GPU is: the fused graph on the device against the model's own weights in float32 there."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.fx import GraphModule

from tandem.compiler.export import Caches
from tandem.compiler.judging import BLOCK_SIZE, compare
from tandem.config.build import BuildOptions
from tandem.engine.kernels.ops.kv_cache import cache_shape
from tandem.engine.kernels.step import GroupTensors, StepTensors
from tandem.engine.kvcache.layer_groups import LayerGroup
from tandem.engine.loading.base import Checkpoint
from tandem.engine.loading.engine_manifest import Quality
from tandem.engine.models.decoder import Decoder
from tandem.engine.quantization.quality import SEQUENCE_LENGTH, LogitsFn


class _OnDevice:
    """A checkpoint whose tensors are moved as they are read."""

    def __init__(self, inner: Checkpoint, device: torch.device) -> None:
        self.path, self.spec, self.text = inner.path, inner.spec, inner.text
        self._inner, self._device = inner, device

    def names(self) -> frozenset[str]:
        return self._inner.names()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._inner.shape(name)

    def read(self, name: str, dtype: torch.dtype) -> Tensor:
        return self._inner.read(name, dtype).to(self._device)


def judge_on(
    device: torch.device,
    checkpoint: Checkpoint,
    graph: GraphModule,
    groups: tuple[LayerGroup, ...],
    caches: Caches,
    options: BuildOptions,
    progress: Callable[[int, int], None],
) -> Quality:
    """As `judging.judge`. The graph's weights are on the device; the reference takes 4 bytes a weight beside them."""
    spec = checkpoint.spec
    reference = Decoder(spec, groups, _OnDevice(checkpoint, device), torch.float32)
    plain = Caches(caches.count, 0, spec.num_kv_heads, BLOCK_SIZE, spec.head_dim, torch.float32)
    built = Caches(caches.count, 0, spec.num_kv_heads, BLOCK_SIZE, spec.head_dim, caches.dtype)
    with torch.inference_mode():
        return compare(
            checkpoint,
            _reference_logits(reference, plain, len(groups), device),
            _graph_logits(graph, built, len(groups), device),
            options,
            progress,
        )


def _reference_logits(decoder: Decoder, caches: Caches, groups: int, device: torch.device) -> LogitsFn:
    memory = _memory(caches, groups, device)

    def run(token_ids: Tensor) -> Tensor:
        ids, positions, starts, lengths, tables, slots, rows = _step(token_ids, groups, device)
        where = [GroupTensors(table, own) for table, own in zip(tables, slots, strict=True)]
        hidden = decoder.forward(StepTensors(ids, positions, starts, lengths, where, rows), memory)
        return decoder.logits(hidden).cpu()

    return run


def _graph_logits(graph: GraphModule, caches: Caches, groups: int, device: torch.device) -> LogitsFn:
    memory = _memory(caches, groups, device)

    def run(token_ids: Tensor) -> Tensor:
        logits: Tensor = graph(*_step(token_ids, groups, device), memory)
        return logits.cpu()

    return run


def _blocks(groups: int) -> int:
    return -(-SEQUENCE_LENGTH // BLOCK_SIZE) * groups


def _memory(caches: Caches, groups: int, device: torch.device) -> list[Tensor]:
    shape = cache_shape(_blocks(groups), caches.num_kv_heads, BLOCK_SIZE, caches.head_dim, caches.dtype)
    return [torch.zeros(shape, dtype=caches.dtype, device=device) for _ in range(caches.count)]


def _step(
    token_ids: Tensor, groups: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor, list[Tensor], list[Tensor], Tensor]:
    """One sequence from its beginning, each group in blocks of its own; all rows are wanted."""
    count = len(token_ids)
    positions = torch.arange(count, dtype=torch.int32, device=device)
    each = _blocks(groups) // groups
    blocks = torch.arange(_blocks(groups), dtype=torch.int32, device=device).view(groups, 1, each)
    return (
        token_ids.int().to(device),
        positions,
        torch.tensor([0, count], dtype=torch.int32, device=device),
        torch.tensor([count], dtype=torch.int32, device=device),
        [blocks[group] for group in range(groups)],
        [positions + group * each * BLOCK_SIZE for group in range(groups)],
        torch.arange(count, device=device),
    )
