"""Settings of one engine: a model on a device. "auto" values are resolved once, into a new object, by the engine."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tandem.core.errors import ConfigError

DTypeChoice = Literal["auto", "float32", "bfloat16", "float16"]


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an engine serves, with how much memory, and how it batches."""

    model: Annotated[
        str, Meta(description="A catalogue name, a folder in Hugging Face's layout, a .gguf file, or a hub id.")
    ] = "smollm2-135m"
    served_model_name: Annotated[
        str | None, Meta(description="The name clients use for the model. Default: the model's name as given.")
    ] = None
    chat_template: Annotated[
        str | None, Meta(description="A file with a chat template (Jinja) to use in place of the model's own.")
    ] = None
    device: Annotated[Literal["auto", "cpu", "cuda"], Meta(description="Where the model runs.")] = "auto"
    dtype: Annotated[
        DTypeChoice,
        Meta(description="Type of weights and arithmetic. auto: bfloat16 where the device multiplies it natively."),
    ] = "auto"
    kv_dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16", "int8"],
        Meta(description="Type of the KV cache. auto: the same as dtype. int8 holds nearly twice as much as bfloat16."),
    ] = "auto"
    kernels: Annotated[
        Literal["auto", "native", "reference"],
        Meta(description="Compiled CPU kernels, or the plain torch reference. auto: native where they can be had."),
    ] = "auto"
    threads: Annotated[int, Meta(ge=0, le=1024, description="CPU threads that compute. 0: every core allowed.")] = 0

    max_model_len: (
        Annotated[
            int, Meta(ge=1, description="Longest prompt plus answer, in tokens. Default: the model's own, if it fits.")
        ]
        | None
    ) = None
    block_size: Annotated[
        int, Meta(ge=1, le=256, description="Tokens in a block of KV: a power of two from 1 to 256.")
    ] = 16
    memory_utilization: Annotated[
        float, Meta(gt=0, le=1, description="Share of the memory free at start that weights and KV may take.")
    ] = 0.5
    kv_memory_gib: (
        Annotated[float, Meta(gt=0, description="Memory for KV in GiB, instead of a share of what is free.")] | None
    ) = None
    num_blocks: (
        Annotated[int, Meta(ge=2, description="Blocks in the pool, instead of a size in bytes. Meant for tests.")]
        | None
    ) = None
    enable_prefix_caching: Annotated[bool, Meta(description="Reuse KV of prompts that begin alike.")] = True

    max_num_seqs: Annotated[int, Meta(ge=1, le=4096, description="Most sequences that run at once.")] = 128
    max_num_batched_tokens: Annotated[
        int, Meta(ge=1, le=1 << 20, description="Token budget of a step; bounds how long a step can take.")
    ] = 512
    max_queued_requests: Annotated[int, Meta(ge=0, description="Requests that may wait; more get a 429.")] = 1024
    max_queued_tokens: Annotated[
        int, Meta(ge=0, description="Prompt tokens that may wait, over all requests; more get a 429.")
    ] = 2_000_000
    seed: Annotated[int, Meta(description="Seeds the requests that bring no seed; 0 draws one from the system.")] = 0
    hash_seed: Annotated[
        str, Meta(description="Shared secret in the hashes of prefix blocks; equal on all replicas of a deployment.")
    ] = ""

    def __post_init__(self) -> None:
        if self.block_size & (self.block_size - 1):
            raise ConfigError(f"block_size is {self.block_size}; it must be a power of two from 1 to 256.")

    @property
    def public_name(self) -> str:
        """The model's name in the API."""
        return self.served_model_name or self.model
