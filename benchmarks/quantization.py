"""Size and quality of a model in every precision, the kernels' rounding of inputs simulated in torch.

    python -m benchmarks.quantization smollm2-135m [--tokens 16384] [--text FILE] [--calibration FILE] [--only awq int4]

The reference is the model's own weights in float32 (a GGUF's as it dequantises them). AWQ stands below round-to-nearest
at the same group size, SmoothQuant below plain W8A8: what they are judged against. Speed is benchmarks/engine.py's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tandem.core.errors import ConfigError
from tandem.engine.loading.base import Checkpoint
from tandem.engine.loading.opening import open_checkpoint
from tandem.engine.loading.sources import resolve
from tandem.engine.quantization.calibration import (
    Calibration,
    held_out_text,
    read_calibration,
    read_text,
    sequences_of,
)
from tandem.engine.quantization.model import quantize
from tandem.engine.quantization.quality import Comparison, Quality, passes
from tandem.engine.quantization.recipe import Recipe
from tandem.engine.quantization.simulate import SimulatedModel, reference_model, reference_name
from tandem.engine.text.tokenizer import load_tokenizer

SEQUENCE_LENGTH = 512
RECIPES: dict[str, Recipe] = {
    "bf16": Recipe(precision="bf16"),
    "int8": Recipe(precision="int8"),
    "int8 by channel": Recipe(precision="int8", group_size=0),
    "as-is": Recipe(precision="as-is"),
    "w8a8": Recipe(precision="w8a8"),
    "smoothquant": Recipe(precision="smoothquant"),
    "fp8": Recipe(precision="fp8"),
    "int4 nearest": Recipe(precision="int4", search=False),
    "int4": Recipe(precision="int4"),
    "awq": Recipe(precision="awq"),
    "gptq": Recipe(precision="gptq"),
    "int4 nearest 32": Recipe(precision="int4", group_size=32, search=False),
    "awq 32": Recipe(precision="awq", group_size=32),
    "gptq 32": Recipe(precision="gptq", group_size=32),
}


@dataclass(slots=True)
class Candidate:
    """One precision of the model, ready to be compared."""

    label: str
    size_bytes: int
    ratio: float
    seconds: float
    model: SimulatedModel
    comparison: Comparison


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a name that `tandem models` lists, or a path")
    parser.add_argument("--tokens", type=int, default=16_896, help="held-out tokens to measure on")
    parser.add_argument("--text", type=Path, help="held-out text instead of the shipped one")
    parser.add_argument("--calibration", type=Path, help="calibration text instead of the own sample")
    parser.add_argument("--only", nargs="+", choices=list(RECIPES), default=list(RECIPES), metavar="PRECISION")
    parser.add_argument("--at-once", type=int, default=5, help="models in memory at once, in float32")
    options = parser.parse_args()
    checkpoint = open_checkpoint(resolve(options.model, offline=True))
    encode = load_tokenizer(checkpoint.text).encode
    text = held_out_text() if options.text is None else read_text(options.text)
    tokens = sequences_of(encode, text, SEQUENCE_LENGTH, options.tokens)
    calibration = read_calibration(encode, options.calibration)
    print(
        f"{reference_name(checkpoint)}; {tokens.numel():,} held-out tokens, {calibration.num_tokens:,} of calibration"
    )
    print("| precision | MB | of bf16 | perplexity (reference) | mean KL | top-1 | within 0.02 / 95 % | quantised in |")
    print("|---|---|---|---|---|---|---|---|")
    reference = reference_model(checkpoint)
    for start in range(0, len(options.only), options.at_once):
        labels = options.only[start : start + options.at_once]
        candidates = list(_candidates(checkpoint, calibration, labels))
        _compare(reference, candidates, tokens)
        for candidate in candidates:
            print(_row(candidate, candidate.comparison.result()), flush=True)


def _candidates(checkpoint: Checkpoint, calibration: Calibration, labels: Sequence[str]) -> Iterator[Candidate]:
    for label in labels:
        start_s = time.perf_counter()
        try:
            model = quantize(checkpoint, RECIPES[label], calibration=calibration)
        except ConfigError as error:
            print(f"| {label} | {error} |")
            continue
        seconds = time.perf_counter() - start_s
        size, ratio = model.num_bytes, model.num_bytes / model.num_bytes_bf16
        yield Candidate(label, size, ratio, seconds, SimulatedModel(model), Comparison())


def _compare(reference: SimulatedModel, candidates: Sequence[Candidate], tokens: Tensor) -> None:
    with torch.inference_mode():
        for sequence in tokens:
            wanted = reference.logits(sequence)[:-1]
            for candidate in candidates:
                candidate.comparison.add(wanted, candidate.model.logits(sequence)[:-1], sequence[1:])


def _row(candidate: Candidate, quality: Quality) -> str:
    return (
        f"| {candidate.label} | {candidate.size_bytes / 1e6:.1f} | {candidate.ratio:.3f} |"
        f" {quality.perplexity:.3f} ({quality.perplexity_reference:.3f}) | {quality.mean_kl:.4f} |"
        f" {quality.top1_agreement:.2%} | {'yes' if passes(quality) else 'no'} | {candidate.seconds:.0f} s |"
    )


if __name__ == "__main__":
    main()
