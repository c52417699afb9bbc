"""`tandem build --device cuda`: the same stages for a GPU, on the machine that has it.

    read -> quantise -> export -> fuse -> pack -> measure -> compile -> write

The stack isn't lowered to one operator: the fused graph keeps its operators, which call Triton kernels, and its
products in floats, which AOTInductor leaves to the vendor's. It is compiled three times (cuda_graph.py); buckets of
batch sizes are a matter of the CUDA graphs that are recorded when the engine is opened.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from torch import Tensor
from torch.fx import GraphModule

from tandem.compiler.aot import compile_package
from tandem.compiler.build import calibration_for, manifest_of, too_lossy, with_times
from tandem.compiler.cuda_graph import export_open, export_steps, lower_for_gpu
from tandem.compiler.cuda_quality import judge_on
from tandem.compiler.engine_writer import EngineWriter, find_existing
from tandem.compiler.export import Caches, Limits, graph_of
from tandem.compiler.inputs import describe_source, input_fingerprint
from tandem.compiler.network import Network
from tandem.compiler.packing import bytes_of
from tandem.compiler.passes.pipeline import fuse, kernels_by_layer
from tandem.compiler.progress import StageProgress
from tandem.compiler.recipes import resolve_recipe
from tandem.compiler.stack import Stack
from tandem.config.build import BuildOptions
from tandem.core.errors import BuildFailed, ConfigError
from tandem.engine.kernels import triton
from tandem.engine.kernels.cpu.weights import ImageEntry
from tandem.engine.kvcache.layer_groups import LayerGroup
from tandem.engine.loading.engine_file import WEIGHTS
from tandem.engine.loading.engine_manifest import EngineManifest, Fusion, LayerKernels, Target
from tandem.engine.loading.opening import open_checkpoint
from tandem.engine.loading.sources import resolve
from tandem.engine.quantization.model import QuantizedModel, quantize
from tandem.engine.runner.compiled_making import PACKAGE
from tandem.engine.runner.cuda import LARGEST_BUCKET, buckets
from tandem.engine.runner.cuda_weights import CUDA_IMAGE_VERSION, ConstantEntry, constants_on, pack_constants

HOST = torch.device("cpu")
_EXPORT_BLOCK_SIZE = 16
_MOST_TOKENS = 1 << 20
MIN_BLOCK_SIZE = 2
"""What open sizes begin with."""


@dataclass(frozen=True, slots=True)
class Fused:
    """The network as its graph will run on the device."""

    graph: GraphModule
    groups: tuple[LayerGroup, ...]
    caches: Caches
    """Their shape when exported."""
    fusions: tuple[Fusion, ...]
    kernels: tuple[LayerKernels, ...]


def the_gpu() -> torch.device:
    """Raises `ConfigError` where there is none."""
    reason = triton.unavailable_reason() if torch.cuda.is_available() else "torch sees no GPU"
    if reason is not None:
        raise ConfigError(
            f"device is cuda, but {reason}. An engine file for a GPU is built on the machine that has it; leave "
            "--device out to build for the CPU."
        )
    return torch.device("cuda")


def build_for_cuda(
    options: BuildOptions, progress: StageProgress, device: torch.device | None = None
) -> EngineManifest:
    """As `build_engine_file`. `device`: where the graphs will run, if not on this machine's GPU: tests give the CPU."""
    device = device or the_gpu()
    torch.set_num_threads(options.threads or torch.get_num_threads())
    path = Path(options.output).expanduser()
    with progress.stage("read"):
        checkpoint = open_checkpoint(resolve(options.model))
        resolved = resolve_recipe(options, checkpoint)
        source = describe_source(checkpoint, options.model)
        target = target_of(device)
        fingerprint = input_fingerprint(source, options, target)
        if not options.force and (existing := find_existing(path, fingerprint)) is not None:
            return existing
    with EngineWriter(path) as writer:
        calibration = calibration_for(options, checkpoint, resolved)
        with progress.stage("quantise"):
            model = quantize(checkpoint, resolved.recipe, calibration=calibration, progress=progress.advance)
        dtype, kv_dtype = getattr(torch, resolved.dtype), getattr(torch, resolved.kv_dtype)
        fused = fuse_for_gpu(model, dtype, kv_dtype, progress)
        with progress.stage("pack"):
            image, constants = pack_constants(dict(fused.graph.named_buffers()))
            place(fused.graph, image, constants, device)
        with progress.stage("measure"):
            quality = judge_on(device, checkpoint, fused.graph, fused.groups, fused.caches, options, progress.advance)
        if not quality.is_within_limits and not options.accept_quality:
            raise BuildFailed(too_lossy(quality, resolved))
        with progress.stage("compile"):
            compile_steps(fused, options.max_num_batched_tokens, device, writer.work / PACKAGE)
        with progress.stage("write"):
            writer.expect(image.numel())
            writer.add(WEIGHTS, "weights", bytes_of(image))
            writer.add_file(PACKAGE, "library", writer.work / PACKAGE)
            writer.add_text(checkpoint)
        stack = _stack_of(fused, image, constants, model.spec.vocab_size)
        manifest = manifest_of(options, resolved, source, target, fingerprint, model, stack, quality, calibration)
        return writer.finish(with_times(_for_gpu(manifest, constants), progress))


def fuse_for_gpu(
    model: QuantizedModel,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    progress: StageProgress,
    device: torch.device = HOST,
) -> Fused:
    """Exported, fused and lowered where the model's weights are. Raises `ModelUnsupported` if it can't be exported."""
    spec = model.spec
    with progress.stage("export"):
        network = Network(spec, model, dtype, max_context=spec.max_position).to(device)
        caches = Caches(network.num_caches, 4, spec.num_kv_heads, _EXPORT_BLOCK_SIZE, spec.head_dim, kv_dtype)
        graph = graph_of(export_open(network, _MOST_TOKENS, caches, len(network.groups), device))
    with progress.stage("fuse"):
        before = kernels_by_layer(graph)
        counts = [*fuse(graph), *lower_for_gpu(graph).items()]
        fusions = tuple(Fusion(name=name, count=count) for name, count in counts)
        after = kernels_by_layer(graph)
        shown = tuple(LayerKernels(layer=n, before=len(before[n]), after=len(after.get(n, []))) for n in before)
        return Fused(graph, network.groups, caches, fusions, shown)


def place(graph: GraphModule, image: Tensor, constants: Sequence[ConstantEntry], device: torch.device) -> None:
    """The graph's weights become views of one copy of the image on the device, as they will be when it is served."""
    for name, tensor in constants_on(device, image, constants).items():
        owner, _, leaf = name.rpartition(".")
        setattr(graph.get_submodule(owner), leaf, tensor)


def compile_steps(fused: Fused, max_tokens: int, device: torch.device, package: Path) -> None:
    limits = Limits(max(max_tokens, LARGEST_BUCKET), LARGEST_BUCKET, 0)
    compile_package(export_steps(fused.graph, limits, fused.caches, len(fused.groups), device), package)


def target_of(device: torch.device) -> Target:
    capability = ".".join(map(str, torch.cuda.get_device_capability(device))) if device.type == "cuda" else None
    return Target(
        device="cuda",
        machine=platform.machine(),
        instruction_set="" if capability is None else f"compute capability {capability}",
        compute_capability=capability,
        torch=torch.__version__,
        image_version=CUDA_IMAGE_VERSION,
    )


def _stack_of(fused: Fused, image: Tensor, constants: Sequence[ConstantEntry], vocab_size: int) -> Stack:
    entries = [ImageEntry(c.name, c.offset, c.size_bytes, c.dtype, 0) for c in constants]
    return Stack(image, entries, fused.fusions, fused.kernels, len(fused.groups), vocab_size)


def _for_gpu(manifest: EngineManifest, constants: Sequence[ConstantEntry]) -> EngineManifest:
    """What `manifest_of` says of CPUs, said of this."""
    kv = msgspec.structs.replace(
        manifest.kv, layout="keys then values, block, head, token; scales of int8 behind", min_block_size=MIN_BLOCK_SIZE
    )
    return msgspec.structs.replace(
        manifest,
        shapes=msgspec.structs.replace(manifest.shapes, buckets=tuple(buckets(LARGEST_BUCKET))),
        kv=kv,
        graphs={"constants": [msgspec.to_builtins(entry) for entry in constants]},
    )
