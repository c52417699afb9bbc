"""From an opened engine file for GPUs to its runner. Imported on that path only: it takes Triton."""

from __future__ import annotations

import torch

from tandem.config.engine import EngineConfig
from tandem.core.errors import ConfigError, ModelUnsupported
from tandem.engine.kernels import triton
from tandem.engine.kernels.ops.kv_cache import cache_shape
from tandem.engine.loading.engine_container import rebuild_command
from tandem.engine.loading.engine_file import EngineFile
from tandem.engine.memory import MemoryPlan
from tandem.engine.runner.compiled_cuda import CompiledCudaRunner, Sizes, StepGraphs
from tandem.engine.runner.compiled_making import PACKAGE
from tandem.engine.runner.cuda_graphs import Capture, GpuCapture
from tandem.engine.runner.cuda_weights import CUDA_IMAGE_VERSION, constants_on, read_entries
from tandem.engine.runner.graphs import load_graph


def open_on_gpu(file: EngineFile, config: EngineConfig, memory: MemoryPlan) -> CompiledCudaRunner:
    """Raises `ConfigError` without a GPU, `ModelUnsupported` on another one, `ModelDamaged`."""
    check_gpu(file)
    return open_runner(file, config, memory, torch.device("cuda"), GpuCapture())


def check_gpu(file: EngineFile) -> None:
    """That the GPU it was built for is here."""
    reason = triton.unavailable_reason() if torch.cuda.is_available() else "torch sees no GPU"
    made_for = file.manifest.target.compute_capability
    if reason is not None:
        raise ConfigError(
            f"{file.path} was built for a GPU of compute capability {made_for}, but {reason}. Serve the model it was "
            f"built from ({file.manifest.source.name}), or build it for the CPU: leave out --device cuda."
        )
    here = ".".join(map(str, torch.cuda.get_device_capability()))
    if here != made_for:
        raise ModelUnsupported(
            f"{file.path} was built for compute capability {made_for}, and this GPU has {here}. Build it here: "
            f"{rebuild_command(file.manifest, file.path)}"
        )


def open_runner(
    file: EngineFile, config: EngineConfig, memory: MemoryPlan, device: torch.device, capture: Capture | None
) -> CompiledCudaRunner:
    """Weights and graphs onto the device, KV memory, CUDA graphs. No `capture`: none are recorded."""
    manifest, spec = file.manifest, file.spec
    _check(file, config)
    constants = constants_on(device, file.map_weights(), read_entries(manifest.graphs, file.path))
    package = file.extract(PACKAGE)
    single, decode, mixed = (
        load_graph(package, name, constants, recordable=True) for name in ("single", "decode", "mixed")
    )
    dtype = getattr(torch, manifest.kv.dtype)
    shape = cache_shape(memory.num_blocks, spec.num_kv_heads, memory.block_size, spec.head_dim, dtype)
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else "interpreter"
    return CompiledCudaRunner(
        StepGraphs(single, decode, mixed, constants),
        [torch.empty(shape, dtype=dtype, device=device) for _ in memory.groups[0].layers],
        Sizes(
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_model_len=memory.max_model_len,
            block_size=memory.block_size,
            num_groups=len(memory.groups),
        ),
        name=f"compiled ({manifest.quantization.precision}, triton, {gpu})",
        capture=capture,
    )


def _check(file: EngineFile, config: EngineConfig) -> None:
    """What is fixed in the graphs, beyond what `fitted` looks at."""
    manifest, command = file.manifest, rebuild_command(file.manifest, file.path)
    if manifest.target.image_version != CUDA_IMAGE_VERSION:
        raise ModelUnsupported(
            f"{file.path} has weights packed in layout {manifest.target.image_version}, and this Tandem reads layout "
            f"{CUDA_IMAGE_VERSION}. Build it here: {command}"
        )
    if config.kv_dtype not in ("auto", manifest.kv.dtype):
        raise ConfigError(
            f"kv_dtype is {config.kv_dtype}, but {file.path} was built for {manifest.kv.dtype}. Leave it out, or build "
            f"anew: {command}"
        )
    if not manifest.kv.min_block_size <= config.block_size <= manifest.kv.max_block_size:
        raise ConfigError(
            f"block_size is {config.block_size}, but {file.path} takes {manifest.kv.min_block_size} to "
            f"{manifest.kv.max_block_size}. Leave it out."
        )
