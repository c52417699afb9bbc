"""How good a build is: the packed network against the model's own weights in float32, on held-out text.

Both run on the native kernels, the built one with the KV type that it will be served with: what is judged is what runs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tandem.compiler.recipes import Resolved, is_quantized
from tandem.config.build import BuildOptions
from tandem.engine.kernels.cpu.decoder import CpuDecoder
from tandem.engine.kernels.cpu.native import Kernels
from tandem.engine.kernels.cpu.weights import ImageEntry
from tandem.engine.kvcache.layer_groups import group_layers
from tandem.engine.loading.base import Checkpoint
from tandem.engine.loading.engine_manifest import Quality
from tandem.engine.quantization.calibration import held_out_tokens
from tandem.engine.quantization.quality import SEQUENCE_LENGTH, Limits, LogitsFn, measure, passes
from tandem.engine.text.tokenizer import load_tokenizer

BLOCK_SIZE = 16
MAX_SEQUENCES = 1_000
"""More than there are; tests judge by fewer."""


def judge(
    checkpoint: Checkpoint,
    image: Tensor,
    entries: list[ImageEntry],
    resolved: Resolved,
    options: BuildOptions,
    kernels: Kernels,
    progress: Callable[[int, int], None],
) -> Quality:
    """Perplexity, divergence and agreement on the held-out text, and whether they are within the limits asked for."""
    spec = checkpoint.spec
    length = min(SEQUENCE_LENGTH, spec.max_position)
    num_blocks = -(-length // BLOCK_SIZE) * len(group_layers([spec.window(i) for i in range(spec.num_layers)]))
    reference = CpuDecoder(
        spec,
        checkpoint.read,
        weight_dtype="float32",
        kv_dtype="float32",
        kernels=kernels,
        threads=torch.get_num_threads(),
        block_size=BLOCK_SIZE,
        num_blocks=num_blocks,
        max_tokens=length,
        max_context=length,
    )
    built = CpuDecoder.from_image(
        spec,
        image,
        entries,
        kv_dtype=resolved.kv_dtype,
        kernels=kernels,
        threads=torch.get_num_threads(),
        block_size=BLOCK_SIZE,
        num_blocks=num_blocks,
        max_tokens=length,
        max_context=length,
        groups=reference.groups,
    )
    try:
        return compare(checkpoint, logits_of(reference), logits_of(built), options, progress)
    finally:
        reference.close()
        built.close()


def compare(
    checkpoint: Checkpoint,
    reference: LogitsFn,
    built: LogitsFn,
    options: BuildOptions,
    progress: Callable[[int, int], None],
) -> Quality:
    """The same for any two networks."""
    length = min(SEQUENCE_LENGTH, checkpoint.spec.max_position)
    tokens = held_out_tokens(load_tokenizer(checkpoint.text).encode, sequence_length=length)[:MAX_SEQUENCES]
    found = measure(reference, built, tokens, progress=progress)
    limits = Limits(options.max_kl, options.min_top1)
    return Quality(
        reference=_reference_name(checkpoint),
        num_tokens=found.num_tokens,
        perplexity=found.perplexity,
        reference_perplexity=found.perplexity_reference,
        mean_kl=found.mean_kl,
        top1_agreement=found.top1_agreement,
        max_kl=limits.mean_kl,
        min_top1=limits.top1_agreement,
        is_within_limits=passes(found, limits),
    )


def logits_of(decoder: CpuDecoder) -> LogitsFn:
    """Logits of all positions of one sequence, computed from its beginning."""
    blocks = torch.arange(decoder.num_blocks, dtype=torch.int32).view(len(decoder.groups), 1, -1)

    def run(token_ids: Tensor) -> Tensor:
        count = len(token_ids)
        positions = torch.arange(count, dtype=torch.int32)
        tables = [blocks[group] for group in range(len(decoder.groups))]
        slots = [
            table[0, positions.long() // decoder.block_size] * decoder.block_size + positions % decoder.block_size
            for table in tables
        ]
        logits = torch.empty(count, decoder.spec.vocab_size)
        decoder.step(
            token_ids.to(torch.int32),
            positions,
            torch.tensor([0, count], dtype=torch.int32),
            torch.tensor([count], dtype=torch.int32),
            tables,
            slots,
            positions,
            argmax_out=torch.empty(count, dtype=torch.int32),
            logits_out=logits,
        )
        return logits

    return run


def _reference_name(checkpoint: Checkpoint) -> str:
    if is_quantized(checkpoint):
        return "the weights as stored, dequantised to float32"
    return "the model's weights, in float32"
