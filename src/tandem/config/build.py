"""Settings of `tandem build`: which model, in which precision, into which file. From flags only.

Neither environment nor tandem.toml plays a part: the command alone says what is in the file, and the file keeps it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tandem.config.describe import flag_words
from tandem.core.errors import ConfigError

Precision = Literal[
    "auto",
    "as-stored",
    "float32",
    "bfloat16",
    "float16",
    "int8",
    "int4",
    "awq",
    "gptq",
    "w8a8",
    "smoothquant",
    "fp8",
    "fp4",
]
BuildKVType = Literal["auto", "float32", "bfloat16", "float16", "int8", "fp8"]
_NOT_IN_THE_RESULT = ("output", "force", "threads")


class BuildOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to build. "auto" is resolved once by the build; the manifest names what it chose."""

    model: Annotated[
        str, Meta(description="A catalogue name, a folder in Hugging Face's layout, a .gguf file, or a hub id.")
    ]
    output: Annotated[str, Meta(description="The engine file to write.")]
    precision: Annotated[
        Precision,
        Meta(
            description="Type of the weights. auto: as stored in a quantised GGUF or checkpoint, else int8. "
            "w8a8 and smoothquant also round what is multiplied with them."
        ),
    ] = "auto"
    group_size: Annotated[
        int, Meta(ge=0, le=128, description="Inputs that share a scale: 32, 64 or 128; 0: as suits the precision.")
    ] = 0
    calibration: Annotated[
        str | None,
        Meta(
            description="A text file to calibrate awq, gptq and smoothquant with. Default: a sample that comes along."
        ),
    ] = None
    kv_dtype: Annotated[
        BuildKVType, Meta(description="Type of the KV cache. auto: int8 beside weights of few bits.")
    ] = "auto"
    device: Annotated[Literal["auto", "cpu", "cuda"], Meta(description="What to build for.")] = "auto"
    max_num_batched_tokens: Annotated[
        int, Meta(ge=1, le=1 << 20, description="Most tokens in a step; the engine can be served with fewer.")
    ] = 512
    threads: Annotated[int, Meta(ge=0, le=1024, description="CPU threads that build. 0: every core allowed.")] = 0
    max_kl: Annotated[
        float, Meta(gt=0, description="Largest mean KL divergence from the reference, in nats a token.")
    ] = 0.02
    min_top1: Annotated[
        float, Meta(ge=0, le=1, description="Least share of tokens at which built and reference agree on the first.")
    ] = 0.95
    accept_quality: Annotated[bool, Meta(description="Write the file also if it is past those limits.")] = False
    force: Annotated[bool, Meta(description="Build also if the file is there, from the same inputs.")] = False

    def __post_init__(self) -> None:
        if self.group_size not in (0, 32, 64, 128):
            raise ConfigError(f"group_size is {self.group_size}; it must be 32, 64, 128, or 0 for the usual one.")

    @property
    def path(self) -> Path:
        """Of the engine file."""
        return Path(self.output).expanduser()

    def result_settings(self) -> dict[str, object]:
        """The options that decide what is in the file, by name. The model and the calibration are told by content."""
        left_out = (*_NOT_IN_THE_RESULT, "model", "calibration")
        return {name: getattr(self, name) for name in self.__struct_fields__ if name not in left_out}

    def command(self) -> tuple[str, ...]:
        """The command line that asks for this again; options at their defaults are left out."""
        words = ["tandem", "build", self.model, "-o", self.output]
        for field in msgspec.structs.fields(self):
            value = getattr(self, field.name)
            if field.name in ("model", "output", "force") or value == field.default:
                continue
            words += flag_words(field.name, value)
        return tuple(words)
