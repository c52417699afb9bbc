"""What precision a build asks for, checked against the network before any weight is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from tandem.core.errors import ConfigError
from tandem.engine.models.spec import ModelSpec

Precision = Literal["bf16", "fp32", "int8", "int4", "as-is", "w8a8", "smoothquant", "awq", "gptq", "fp8"]
PRECISIONS: tuple[str, ...] = get_args(Precision)
CALIBRATED = ("smoothquant", "awq", "gptq")
"""Those that look at what a text makes the network compute."""
GPU_ONLY = ("nvfp4", "mxfp4")
HeadPrecision = Literal["bf16", "fp32", "int8", "int4", "fp8"]

GROUPS = (32, 64, 128)
BY_CHANNEL = 0
HEAD_GROUP = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a model's weights become few bits. `None` is the precision's own default."""

    precision: Precision
    group_size: int | None = None
    """Weights of a row that share a scale: 32, 64 or 128, at most: where it doesn't divide a row, the next smaller one
    is taken. 0: the whole row ("by channel"), which only 8 bits can be."""
    symmetric: bool | None = None
    """Whether zero is in the middle of the codes. Default: 8 bits yes, 4 bits no."""
    head: HeadPrecision | None = None
    """Embedding and LM head, whose errors reach the logits directly. Default: 8 bits with 8, 4 bits in groups of 32
    with 4."""
    search: bool = True
    """4 bits: look for the scales of least error; without, they span each group's range ("round to nearest"), as they
    do with 8 bits, where looking gains nothing."""
    compensate: bool = False
    """Let later columns make up for the errors of earlier ones (as gptq always does); needs calibration."""

    @property
    def calibrated(self) -> bool:
        return self.precision in CALIBRATED or self.compensate

    @property
    def compensates(self) -> bool:
        return self.compensate or self.precision == "gptq"

    @property
    def kind(self) -> Literal["bf16", "fp32", "int8", "int4", "fp8", "as-is"]:
        """What the layers' weights are stored as."""
        if self.precision in ("w8a8", "smoothquant"):
            return "int8"
        if self.precision in ("awq", "gptq"):
            return "int4"
        return self.precision  # type: ignore[return-value]

    @property
    def head_kind(self) -> HeadPrecision:
        if self.head is not None:
            return self.head
        return "bf16" if self.kind == "as-is" else self.kind

    @property
    def is_symmetric(self) -> bool:
        return self.symmetric if self.symmetric is not None else self.kind != "int4"

    @property
    def wanted_group(self) -> int:
        if self.group_size is not None:
            return self.group_size
        return 128 if self.kind == "int4" or self.precision == "int8" else BY_CHANNEL

    def group_for(self, num_inputs: int, name: str = "a product") -> int:
        """The group size of a row of `num_inputs`: the wanted one, or the largest smaller one that divides it."""
        if self.wanted_group == BY_CHANNEL:
            return num_inputs
        return _dividing(self.wanted_group, num_inputs, name)

    @property
    def text(self) -> str:
        """As a manifest and a table name it: `awq, groups of 128, head int4`."""
        parts: list[str] = [self.precision]
        if self.kind in ("int8", "int4"):
            parts.append(f"groups of {self.wanted_group}" if self.wanted_group else "by channel")
            parts.append("symmetric" if self.is_symmetric else "asymmetric")
        if self.kind == "int4" and not self.search:
            parts.append("scales not searched")
        if self.compensate:
            parts.append("errors compensated")
        if self.head is not None:
            parts.append(f"head {self.head}")
        return ", ".join(parts)


def check_recipe(recipe: Recipe, spec: ModelSpec, *, has_calibration: bool) -> None:
    """Raises `ConfigError` where the recipe can't be made of this network."""
    _check_precision(recipe)
    _check_group(recipe)
    if recipe.calibrated and not has_calibration:
        raise ConfigError(
            f"precision {recipe.precision} looks at what a text makes the network compute, and no calibration text was"
            " given; give one, or take int4 (instead of awq, gptq) or w8a8 (instead of smoothquant)."
        )
    for name, num_inputs in _inputs(spec):
        if recipe.kind in ("int8", "int4"):
            recipe.group_for(num_inputs, name)
    if recipe.head_kind == "int4":
        _dividing(HEAD_GROUP, spec.hidden_size, "the LM head")


def _check_precision(recipe: Recipe) -> None:
    if recipe.precision in GPU_ONLY:
        raise ConfigError(
            f"precision {recipe.precision} needs a GPU with 4-bit floats and torch's float4 products, which Tandem has"
            " no kernels for; take awq or int4 (as many bits) or fp8."
        )
    if recipe.precision not in PRECISIONS:
        raise ConfigError(f"precision {recipe.precision!r} is unknown; there are {', '.join(PRECISIONS)}.")
    if recipe.head is not None and recipe.head not in get_args(HeadPrecision):
        raise ConfigError(f"head precision {recipe.head!r} is unknown; there are {', '.join(get_args(HeadPrecision))}.")


def _check_group(recipe: Recipe) -> None:
    if recipe.group_size is None:
        return
    if recipe.precision not in ("int8", "int4", "awq", "gptq"):
        raise ConfigError(f"precision {recipe.precision} has no groups; leave group_size out.")
    allowed = GROUPS if recipe.kind == "int4" else (BY_CHANNEL, *GROUPS)
    if recipe.group_size not in allowed:
        raise ConfigError(
            f"group_size {recipe.group_size} isn't possible for {recipe.precision}; {', '.join(map(str, allowed))} are."
        )


def _dividing(wanted: int, num_inputs: int, name: str) -> int:
    for size in reversed(GROUPS):
        if size <= wanted and num_inputs % size == 0:
            return size
    raise ConfigError(
        f"{name} has {num_inputs} inputs, which no group of {', '.join(map(str, GROUPS))} divides; take int8 by channel"
        " (group_size 0), w8a8 or bf16."
    )


def _inputs(spec: ModelSpec) -> list[tuple[str, int]]:
    return [
        ("q_proj", spec.hidden_size),
        ("o_proj", spec.num_heads * spec.head_dim),
        ("down_proj", spec.intermediate_size),
    ]
