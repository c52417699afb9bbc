"""`tandem inspect`: what an engine file is, what it was made for, and how good it is. Needs no torch."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from tandem.engine.loading.engine_container import EngineContainer
    from tandem.engine.loading.engine_manifest import EngineManifest

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

Row = tuple[str, ...]
T = TypeVar("T")


def register(commands: Commands) -> None:
    parser = commands.add_parser(
        "inspect", help="say what an engine file is", usage="tandem inspect ENGINE [options]", allow_abbrev=False
    )
    parser.add_argument("engine", type=Path, help="an engine file, made by tandem build")
    parser.add_argument("--json", action="store_true", help="print the manifest as it is")
    parser.add_argument("--verify", action="store_true", help="read the whole file and compare its checksums")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from tandem.engine.loading.engine_container import EngineContainer
    from tandem.engine.loading.engine_manifest import encode_manifest

    container = EngineContainer(args.engine.expanduser())
    if args.verify:
        container.verify()
    if args.json:
        print(encode_manifest(container.manifest, indent=2).decode())
        return 0
    for line in describe(container):
        print(line)
    if args.verify:
        print("\nverified: every part is what was written")
    return 0


def describe(container: EngineContainer) -> Iterator[str]:
    """The manifest in lines for people."""
    manifest = container.manifest
    yield from _columns(_facts(container))
    if manifest.fusions:
        yield "\nFUSIONS"
        yield from _columns([(f"  {fusion.name}", f"{fusion.count:,}") for fusion in manifest.fusions])
    if manifest.kernels:
        yield "\nKERNELS A STEP"
        yield from _columns(_kernel_rows(manifest))
    yield "\nSIZES"
    yield from _columns(_size_rows(manifest))


def _facts(container: EngineContainer) -> Iterator[Row]:
    from tandem.engine.loading.engine_host import refusal, this_host

    manifest, spec = container.manifest, container.manifest.spec
    yield "engine", f"{container.path}, {size(container.size_bytes)}"
    yield "model", f"{manifest.source.name} ({manifest.source.format}), SHA-256 {manifest.source.sha256}"
    yield "network", f"{spec.family}, {spec.num_layers} layers, {spec.num_parameters / 1e6:.0f} M parameters"
    yield "weights", f"{quantization_line(manifest)}, arithmetic in {manifest.dtype}"
    yield "calibration", manifest.quantization.calibration
    yield "KV cache", _kv(manifest)
    yield "shapes", _shapes(manifest)
    yield "made for", _made_for(manifest)
    yield "fits here", refusal(manifest, this_host(), container.path) or "yes"
    yield "quality", quality_line(manifest)
    yield "built", _built(manifest)
    yield "command", shlex.join(manifest.command)


def quantization_line(manifest: EngineManifest) -> str:
    """`int4, awq, groups of 32, activations int8_token`."""
    recipe = manifest.quantization
    words = [recipe.precision]
    if recipe.method and recipe.method != recipe.precision:
        words.append(recipe.method)
    if recipe.group_size:
        words.append(f"groups of {recipe.group_size}")
    if recipe.activations != "float":
        words.append(f"activations {recipe.activations}")
    return ", ".join(words)


def quality_line(manifest: EngineManifest) -> str:
    """The figures and their limits, and whether they hold."""
    found = manifest.quality
    if found is None:
        return "not measured"
    verdict = "" if found.is_within_limits else " PAST THE LIMIT, accepted by --accept-quality:"
    return (
        f"{verdict} KL {found.mean_kl:.4f} (at most {found.max_kl:g}), first token equal {found.top1_agreement:.1%} "
        f"(at least {found.min_top1:.0%}), perplexity {found.perplexity:.3f} beside {found.reference_perplexity:.3f}, "
        f"on {found.num_tokens:,} tokens, against {found.reference}"
    ).strip()


def size(num_bytes: int) -> str:
    """In the unit that suits: `1.5 KiB`, `98.1 MiB`."""
    if num_bytes < 1024:
        return f"{num_bytes} B"
    if num_bytes < 1 << 20:
        return f"{num_bytes / 1024:.1f} KiB"
    return f"{num_bytes / (1 << 20):.1f} MiB"


def _kv(manifest: EngineManifest) -> str:
    kv = manifest.kv
    groups = "1 group" if kv.num_groups == 1 else f"{kv.num_groups} groups"
    return f"{kv.dtype}, {kv.layout}, {groups}, blocks of {kv.min_block_size} to {kv.max_block_size} tokens"


def _shapes(manifest: EngineManifest) -> str:
    shapes = manifest.shapes
    words = [f"up to {shapes.max_num_batched_tokens:,} tokens a step"]
    if shapes.max_num_seqs:
        words.append(f"{shapes.max_num_seqs:,} sequences")
    if shapes.max_context:
        words.append(f"{shapes.max_context:,} tokens of context")
    buckets = ", ".join(map(str, shapes.buckets))
    words.append(f"buckets {buckets}" if buckets else "code of its own for 1 token, one for any number from 2 on")
    return "; ".join(words)


def _made_for(manifest: EngineManifest) -> str:
    target = manifest.target
    words = [target.device, target.machine]
    if target.instruction_set:
        words.append(target.instruction_set)
    if target.compute_capability:
        words.append(f"compute capability {target.compute_capability}")
    return ", ".join([*words, f"torch {target.torch}", f"weight layout {target.image_version}"])


def _built(manifest: EngineManifest) -> str:
    when = f"{manifest.built_at}, " if manifest.built_at else ""
    stages = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in manifest.build_s.items())
    total_s = sum(manifest.build_s.values())
    return f"{when}by tandem {manifest.tandem}, in {total_s:.1f} s" + (f": {stages}" if stages else "")


def _kernel_rows(manifest: EngineManifest) -> Iterator[Row]:
    yield "  LAYER", "BEFORE", "AFTER"
    for row in _merged([(kernels.layer, (kernels.before, kernels.after)) for kernels in manifest.kernels]):
        yield f"  {row[0]}", *(f"{count:,}" for count in row[1])
    before, after = (sum(counts) for counts in zip(*((k.before, k.after) for k in manifest.kernels), strict=True))
    yield "  all", f"{before:,}", f"{after:,}"


def _size_rows(manifest: EngineManifest) -> Iterator[Row]:
    """The weights layer by layer, then the other parts."""
    layers: dict[str, int] = {}
    for entry in manifest.weights:
        layer = _layer_of(entry.name)
        layers[layer] = layers.get(layer, 0) + entry.size_bytes
    for layer, num_bytes in _merged(list(layers.items())):
        yield f"  weights of {layer}", size(num_bytes), _kinds(manifest, layer)
    for part in manifest.parts:
        yield f"  {part.name}", size(part.size_bytes), part.kind


def _layer_of(entry: str) -> str:
    """`layers.3.qkv` → `layers.3`; `head` → `head`."""
    words = entry.split(".")
    return ".".join(words[:2]) if words[0] == "layers" and len(words) > 1 else entry


def _merged(rows: list[tuple[str, T]]) -> Iterator[tuple[str, T]]:
    """Neighbouring layers that are alike become one row: `layers.1-29, each`."""
    at = 0
    while at < len(rows):
        name, value = rows[at]
        end = at + 1
        if name.startswith("layers."):
            while end < len(rows) and rows[end][0].startswith("layers.") and rows[end][1] == value:
                end += 1
        last = rows[end - 1][0].removeprefix("layers.")
        yield (name if end == at + 1 else f"{name}-{last}, each"), value
        at = end


def _kinds(manifest: EngineManifest, layer: str) -> str:
    """Which types the matrices of a layer (or of the first of several) have."""
    first = layer.removesuffix(", each").partition("-")[0]
    kinds = [entry.kind for entry in manifest.weights if _layer_of(entry.name) == first]
    return ", ".join(dict.fromkeys(kinds))


def _columns(rows: Iterator[Row] | list[Row]) -> Iterator[str]:
    lines = list(rows)
    widths = [max(len(row[column]) for row in lines if column < len(row)) for column in range(max(map(len, lines)) - 1)]
    for row in lines:
        cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)]
        yield "  ".join([*cells, row[-1]])
