"""From an opened engine file to the decoder that runs it. Holds the settings to what the file was built for."""

from __future__ import annotations

import msgspec

from tandem.config.engine import EngineConfig
from tandem.core.errors import ConfigError, ModelUnsupported
from tandem.core.types import KVDType
from tandem.engine.kernels.cpu.decoder import CpuDecoder
from tandem.engine.kernels.cpu.native import Kernels, load_kernels
from tandem.engine.kernels.cpu.weights import IMAGE_VERSION, ImageEntry
from tandem.engine.loading.engine_container import rebuild_command
from tandem.engine.loading.engine_file import EngineFile
from tandem.engine.memory import MemoryPlan
from tandem.engine.runner.compiled import CompiledDecoder, Graphs
from tandem.engine.runner.graphs import load_graph

PACKAGE = "graphs.pt2"
"""Part of the file: what AOTInductor compiled."""
SINGLE, BATCH = "single", "batch"
"""The graphs in it."""
CONSTANT = "weights"
"""The one constant of either graph: the packed image."""


def fitted(config: EngineConfig, file: EngineFile) -> EngineConfig:
    """The settings with the file's own in place of "auto". Raises `ConfigError` for what it wasn't built for."""
    manifest = file.manifest
    if config.dtype not in ("auto", manifest.dtype):
        raise _not_built_for(file, f"dtype is {config.dtype}", f"it computes in {manifest.dtype}")
    if config.kernels == "reference":
        raise ConfigError(f"kernels is 'reference', but {file.path} is compiled for native ones. Use --kernels auto.")
    if config.device not in ("auto", manifest.target.device):
        raise _not_built_for(file, f"device is {config.device}", f"it was built for {manifest.target.device}")
    most = manifest.shapes.max_num_batched_tokens
    if config.max_num_batched_tokens > most:
        raise _not_built_for(file, f"max_num_batched_tokens is {config.max_num_batched_tokens}", f"it takes {most}")
    return msgspec.structs.replace(
        config,
        device=manifest.target.device,
        dtype=manifest.dtype,
        kv_dtype=manifest.kv.dtype if config.kv_dtype == "auto" else config.kv_dtype,
    )


def open_decoder(
    file: EngineFile, config: EngineConfig, memory: MemoryPlan, kv_dtype: KVDType, threads: int
) -> CompiledDecoder:
    """Maps the weights, loads the graphs, allocates the KV. Raises `ModelUnsupported`, `ModelDamaged`."""
    assert kv_dtype != "float16"
    kernels = _kernels(file)
    image = file.map_weights()
    native = CpuDecoder.from_image(
        file.spec,
        image,
        [ImageEntry(**msgspec.structs.asdict(entry)) for entry in file.manifest.weights],
        kernels=kernels,
        kv_dtype=kv_dtype,
        threads=threads,
        block_size=memory.block_size,
        num_blocks=memory.num_blocks,
        max_tokens=config.max_num_batched_tokens,
        max_context=memory.max_model_len,
        groups=memory.groups,
        # Floats are read at the speed of memory, and small pages cost that an eighth; of integers less is read.
        copy=file.manifest.quantization.precision in ("float32", "bfloat16"),
    )
    package, constants = file.extract(PACKAGE), {CONSTANT: image}
    graphs = Graphs(load_graph(package, SINGLE, constants), load_graph(package, BATCH, constants), image)
    return CompiledDecoder(native, graphs)


def _kernels(file: EngineFile) -> Kernels:
    made_for = file.manifest.target.image_version
    if made_for != IMAGE_VERSION:
        raise ModelUnsupported(
            f"{file.path} has weights packed in layout {made_for}, and the kernels of this Tandem read layout "
            f"{IMAGE_VERSION}. Build it here: {rebuild_command(file.manifest, file.path)}"
        )
    kernels, reason = load_kernels()
    if kernels is None:
        raise ModelUnsupported(f"{file.path} needs the native kernels, and there are none: {reason}.")
    return kernels


def _not_built_for(file: EngineFile, given: str, made: str) -> ConfigError:
    command = rebuild_command(file.manifest, file.path)
    return ConfigError(
        f"{given}, but {file.path} is an engine file, and {made}. Leave it out, or build anew: {command}"
    )
