"""`tandem build`: from a model to an engine file, stage by stage.

    read -> quantise -> export -> fuse -> pack -> measure -> compile -> write

For CPUs: the fused graph is lowered to one native operator over one packed image (lowering.py), which AOTInductor
compiles twice, for a single token and for everything else. For GPUs: cuda.py.
"""

from __future__ import annotations

import importlib.metadata
import platform
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from tandem.compiler.aot import compile_package
from tandem.compiler.engine_writer import EngineWriter, find_existing
from tandem.compiler.inputs import describe_source, input_fingerprint
from tandem.compiler.judging import judge
from tandem.compiler.lowering import GraphLimits, LoweredDecoder, export_batch, export_single
from tandem.compiler.packing import bytes_of
from tandem.compiler.progress import StageProgress
from tandem.compiler.recipes import Resolved, resolve_recipe
from tandem.compiler.stack import Stack, make_stack
from tandem.config.build import BuildOptions
from tandem.core.errors import BuildFailed, ConfigError
from tandem.engine.kernels.cpu.native import Kernels, load_kernels
from tandem.engine.kernels.cpu.weights import IMAGE_VERSION
from tandem.engine.loading.base import Checkpoint
from tandem.engine.loading.engine_file import WEIGHTS
from tandem.engine.loading.engine_manifest import (
    EngineManifest,
    KVLayout,
    Quality,
    Quantization,
    Shapes,
    Source,
    Target,
    WeightEntry,
)
from tandem.engine.loading.opening import open_checkpoint
from tandem.engine.loading.sources import resolve
from tandem.engine.quantization.calibration import Calibration, read_calibration
from tandem.engine.quantization.model import QuantizedModel, quantize
from tandem.engine.runner.compiled_making import BATCH, PACKAGE, SINGLE
from tandem.engine.text.tokenizer import load_tokenizer


def build_engine_file(options: BuildOptions, progress: StageProgress) -> EngineManifest:
    """Builds `options.output`, or finds it built already from the same inputs. Raises `TandemError`s only.

    A build past its limits of quality is refused unless accepted.
    """
    if options.device == "cuda":
        from tandem.compiler.cuda import build_for_cuda  # only here: it takes Triton

        return build_for_cuda(options, progress)
    torch.set_num_threads(options.threads or torch.get_num_threads())
    target = Path(options.output).expanduser()
    with progress.stage("read"):
        checkpoint = open_checkpoint(resolve(options.model))
        resolved = resolve_recipe(options, checkpoint)
        source = describe_source(checkpoint, options.model)
        machine = _target()
        fingerprint = input_fingerprint(source, options, machine)
        if not options.force and (existing := find_existing(target, fingerprint)) is not None:
            return existing
    kernels = _kernels()
    with EngineWriter(target) as writer:
        calibration = calibration_for(options, checkpoint, resolved)
        with progress.stage("quantise"):
            model = quantize(checkpoint, resolved.recipe, calibration=calibration, progress=progress.advance)
        stack = make_stack(model, getattr(torch, resolved.dtype), kernels, progress)
        with progress.stage("measure"):
            quality = judge(checkpoint, stack.image, stack.entries, resolved, options, kernels, progress.advance)
        if not quality.is_within_limits and not options.accept_quality:
            raise BuildFailed(too_lossy(quality, resolved))
        with progress.stage("compile"):
            package = writer.work / PACKAGE
            _compile(stack, options, package)
        with progress.stage("write"):
            writer.expect(stack.image.numel())
            writer.add(WEIGHTS, "weights", bytes_of(stack.image))
            writer.add_file(PACKAGE, "library", package)
            writer.add_text(checkpoint)
        manifest = manifest_of(options, resolved, source, machine, fingerprint, model, stack, quality, calibration)
        return writer.finish(with_times(manifest, progress))


def _compile(stack: Stack, options: BuildOptions, package: Path) -> None:
    # The image's own bytes play no part: the graphs read constants that are given when they are loaded.
    module = LoweredDecoder(stack.image)
    limits = GraphLimits(options.max_num_batched_tokens, 1 << 16, stack.num_groups, stack.vocab_size)
    programs = {SINGLE: export_single(module, limits), BATCH: export_batch(module, limits)}
    compile_package(programs, package)


def calibration_for(options: BuildOptions, checkpoint: Checkpoint, resolved: Resolved) -> Calibration | None:
    if not resolved.recipe.calibrated:
        if options.calibration is not None:
            raise ConfigError(f"calibration is given, but {resolved.precision} doesn't look at any text; leave it out.")
        return None
    tokenizer = load_tokenizer(checkpoint.text)
    path = None if options.calibration is None else Path(options.calibration).expanduser()
    return read_calibration(tokenizer.encode, path)


def _kernels() -> Kernels:
    kernels, reason = load_kernels()
    if kernels is None:
        raise BuildFailed(f"An engine file for CPUs runs on the native kernels, and there are none: {reason}.")
    return kernels


def _target() -> Target:
    """The compiled graphs hold no vector code of their own, and the native kernels choose theirs when loaded: any
    processor of this architecture will do."""
    return Target(
        device="cpu",
        machine=platform.machine(),
        instruction_set="any: the kernels choose when loaded",
        torch=torch.__version__,
        image_version=IMAGE_VERSION,
    )


def manifest_of(
    options: BuildOptions,
    resolved: Resolved,
    source: Source,
    machine: Target,
    fingerprint: str,
    model: QuantizedModel,
    stack: Stack,
    quality: Quality,
    calibration: Calibration | None,
) -> EngineManifest:
    recipe = resolved.recipe
    entries = tuple(
        WeightEntry(name=e.name, offset=e.offset, size_bytes=e.size_bytes, kind=e.kind, group_size=e.group_size)
        for e in stack.entries
    )
    return EngineManifest(
        source=source,
        spec=model.spec,
        dtype=resolved.dtype,
        quantization=Quantization(
            precision=resolved.precision,
            method="; ".join([recipe.text, *model.notes]),
            group_size=recipe.wanted_group or None,
            activations=_activations(model),
            calibration="none" if calibration is None else f"{calibration.source}, {calibration.num_tokens} tokens",
        ),
        shapes=Shapes(max_num_batched_tokens=options.max_num_batched_tokens),
        kv=KVLayout(
            dtype=resolved.kv_dtype, layout="block, layer, head, keys then values", num_groups=stack.num_groups
        ),
        target=machine,
        fingerprint=fingerprint,
        command=options.command(),
        tandem=importlib.metadata.version("tandem-llm"),
        built_at=datetime.now(UTC).isoformat(timespec="seconds"),
        quality=quality,
        fusions=stack.fusions,
        kernels=stack.kernels,
        weights=entries,
    )


def with_times(manifest: EngineManifest, progress: StageProgress) -> EngineManifest:
    return msgspec.structs.replace(manifest, build_s=dict(progress.seconds))


def _activations(model: QuantizedModel) -> str:
    matrix = model.matrix("model.layers.0.mlp.down_proj.weight")
    return "float" if isinstance(matrix, Tensor) else matrix.activations


def too_lossy(quality: Quality, resolved: Resolved) -> str:
    return (
        f"precision {resolved.precision} changes the model too much: mean KL {quality.mean_kl:.4f} (limit "
        f"{quality.max_kl:g}), same first token {quality.top1_agreement:.1%} (limit {quality.min_top1:.0%}). Take more "
        "bits, awq or smoothquant, or accept it with --accept-quality."
    )
