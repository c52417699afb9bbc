"""What a narrower KV cache costs in quality: teacher-forced on text, against float32 weights and KV.

    python -m benchmarks.kv_precision [--model smollm2-135m] [--tokens 4096]

The text is this project's own documentation, in windows of 512 tokens. KL is from the reference's distribution to the
other's, over the whole vocabulary, averaged over positions; top-1 is how often both hold the same token likeliest.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from tandem.config.engine import EngineConfig
from tandem.engine.kernels.cpu.decoder import CpuDecoder, KvDType, WeightDType
from tandem.engine.kernels.cpu.native import load_kernels
from tandem.engine.loading.base import Checkpoint
from tandem.engine.loading.opening import open_checkpoint
from tandem.engine.loading.sources import resolve
from tandem.engine.memory import plan_memory
from tandem.engine.text.tokenizer import load_tokenizer

WINDOW, BLOCK = 512, 16
KINDS: list[tuple[WeightDType, KvDType]] = [
    ("float32", "bfloat16"),
    ("float32", "int8"),
    ("bfloat16", "bfloat16"),
    ("bfloat16", "int8"),
]


def own_text() -> str:
    return "\n\n".join(path.read_text() for path in sorted(Path("docs").glob("*.md")))


def decoder(checkpoint: Checkpoint, weights: WeightDType, kv: KvDType) -> CpuDecoder:
    kernels, reason = load_kernels()
    assert kernels is not None, reason
    memory = plan_memory(checkpoint.spec, EngineConfig(num_blocks=256, block_size=BLOCK), kv, 0)
    return CpuDecoder(
        checkpoint.spec,
        checkpoint.read,
        kernels=kernels,
        weight_dtype=weights,
        kv_dtype=kv,
        threads=2,
        block_size=BLOCK,
        num_blocks=256,
        max_tokens=64,
        groups=memory.groups,
    )


def log_probabilities(model: CpuDecoder, tokens: list[int]) -> Iterator[Tensor]:
    """float32 [64, V] for 64 positions at a time, each seeing the KV of those before it as it was stored."""
    groups = len(model.groups)
    blocks = -(-len(tokens) // BLOCK)
    tables = [torch.arange(g * blocks, (g + 1) * blocks, dtype=torch.int32)[None] for g in range(groups)]
    for start in range(0, len(tokens), 64):
        part = torch.tensor(tokens[start : start + 64], dtype=torch.int32)
        positions = torch.arange(start, start + len(part), dtype=torch.int32)
        logits = torch.empty(len(part), model.spec.vocab_size)
        model.step(
            part,
            positions,
            torch.tensor([0, len(part)], dtype=torch.int32),
            torch.tensor([start + len(part)], dtype=torch.int32),
            tables,
            [(table[0, positions // BLOCK] * BLOCK + positions % BLOCK).contiguous() for table in tables],
            torch.arange(len(part), dtype=torch.int32),
            argmax_out=torch.empty(len(part), dtype=torch.int32),
            logits_out=logits,
        )
        yield logits.log_softmax(-1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, default=4096)
    args = parser.parse_args()
    checkpoint = open_checkpoint(resolve(args.model))
    tokens = load_tokenizer(checkpoint.text).encode(own_text())[: args.tokens]
    reference = decoder(checkpoint, "float32", "float32")
    others = {kinds: decoder(checkpoint, *kinds) for kinds in KINDS}
    divergence = dict.fromkeys(KINDS, 0.0)
    agreement = dict.fromkeys(KINDS, 0)
    for start in range(0, len(tokens), WINDOW):
        window = tokens[start : start + WINDOW]
        streams = {kinds: log_probabilities(other, window) for kinds, other in others.items()}
        for wanted in log_probabilities(reference, window):
            for kinds, stream in streams.items():
                found = next(stream)
                divergence[kinds] += float((wanted.exp() * (wanted - found)).sum())
                agreement[kinds] += int((wanted.argmax(-1) == found.argmax(-1)).sum())
    print(f"{args.model}, {len(tokens)} tokens, against float32 weights and KV")
    for kinds in KINDS:
        mean, share = divergence[kinds] / len(tokens), agreement[kinds] / len(tokens)
        print(f"weights {kinds[0]:8} KV {kinds[1]:8}  mean KL {mean:.5f}  same top-1 {share:.2%}")


if __name__ == "__main__":
    main()
