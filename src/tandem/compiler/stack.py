"""A quantised network as one packed image: exported, fused, matched, packed. One operator over it is then compiled."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tandem.compiler.export import Caches, Limits, export_network, graph_of
from tandem.compiler.network import Network
from tandem.compiler.packing import decoder_weights
from tandem.compiler.passes.match import match_decoder
from tandem.compiler.passes.pipeline import fuse, kernels_by_layer
from tandem.compiler.progress import StageProgress
from tandem.core.errors import ModelUnsupported
from tandem.engine.kernels.cpu.native import Kernels
from tandem.engine.kernels.cpu.weights import ImageEntry, pack_image
from tandem.engine.loading.engine_manifest import Fusion, LayerKernels
from tandem.engine.quantization.model import QuantizedModel

LOWERING = "whole stack in one native operator"
_EXPORTED_CONTEXT = 4096
"""Positions that the exported graph's RoPE table covers; the native operator computes its own."""


class Stack(NamedTuple):
    """The network after fusing and packing."""

    image: Tensor
    entries: list[ImageEntry]
    fusions: tuple[Fusion, ...]
    kernels: tuple[LayerKernels, ...]
    num_groups: int
    vocab_size: int


def make_stack(model: QuantizedModel, dtype: torch.dtype, kernels: Kernels, progress: StageProgress) -> Stack:
    """Raises `ModelUnsupported` for a network that can't be exported, or isn't the stack that the kernels know."""
    spec = model.spec
    with progress.stage("export"):
        context = min(spec.max_position, _EXPORTED_CONTEXT)
        network = Network(spec, model, dtype, max_context=context)
        limits = Limits(max_tokens=64, max_sequences=32, max_blocks=context // 16)
        caches = Caches(network.num_caches, 4, spec.num_kv_heads, 16, spec.head_dim, dtype)
        graph = graph_of(export_network(network, limits, caches))
    with progress.stage("fuse"):
        before = kernels_by_layer(graph)
        fusions = [Fusion(name=name, count=count) for name, count in fuse(graph)]
        after = kernels_by_layer(graph)
        matched, reason = match_decoder(graph)
        if matched is None:
            raise ModelUnsupported(f"The fused network isn't a stack that the native operator knows: {reason}.")
        fusions.append(Fusion(name=LOWERING, count=len(matched.layers)))
    with progress.stage("pack"):
        image, entries = pack_image(spec, decoder_weights(graph, matched, spec), kernels)
        shown = tuple(LayerKernels(layer=n, before=len(before[n]), after=len(after.get(n, []))) for n in before)
        return Stack(image, entries, tuple(fusions), shown, len(network.groups), spec.vocab_size)
