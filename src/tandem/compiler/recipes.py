"""What the flags of `tandem build` mean for this model: the recipe of its weights, the types of arithmetic and KV."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from tandem.config.build import BuildOptions
from tandem.core.errors import ConfigError
from tandem.engine.loading.base import Checkpoint
from tandem.engine.quantization.recipe import Precision, Recipe
from tandem.engine.quantization.stored import StoresQuantized

_PLAIN_TYPES = ("F32", "F16", "BF16")
_NAMES: dict[str, str] = {"as-stored": "as-is", "float32": "fp32", "bfloat16": "bf16", "fp4": "nvfp4"}
"""The flag's word → the recipe's, where they differ."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """Nothing is "auto" any more."""

    recipe: Recipe
    precision: str
    """As `--precision` takes it."""
    dtype: Literal["float32", "bfloat16"]
    kv_dtype: Literal["float32", "bfloat16", "int8"]


def resolve_recipe(options: BuildOptions, checkpoint: Checkpoint) -> Resolved:
    """Raises `ConfigError` for what a CPU's kernels don't have; the quantiser refuses the rest."""
    precision = options.precision
    if precision == "auto":
        precision = "as-stored" if is_quantized(checkpoint) else "int8"
    if precision == "float16":
        raise ConfigError("precision is float16, which the CPU kernels don't have; take bfloat16 or float32.")
    group_size = options.group_size or None
    recipe = Recipe(precision=cast(Precision, _NAMES.get(precision, precision)), group_size=group_size)
    dtype: Literal["float32", "bfloat16"] = "float32" if precision == "float32" else "bfloat16"
    return Resolved(recipe, precision, dtype, _kv_dtype(options, precision, dtype))


def is_quantized(checkpoint: Checkpoint) -> bool:
    """Whether its products are stored in few bits already."""
    if not isinstance(checkpoint, StoresQuantized):
        return False
    kind = checkpoint.stored_kind("model.layers.0.self_attn.q_proj.weight")
    return kind.upper() not in _PLAIN_TYPES


def _kv_dtype(
    options: BuildOptions, precision: str, dtype: Literal["float32", "bfloat16"]
) -> Literal["float32", "bfloat16", "int8"]:
    asked = options.kv_dtype
    if asked in ("float16", "fp8"):
        raise ConfigError(f"kv_dtype is {asked}, which the CPU kernels don't have; take int8, bfloat16 or float32.")
    if asked == "auto":
        return dtype if precision in ("float32", "bfloat16") else "int8"
    return cast(Literal["float32", "bfloat16", "int8"], asked)
