"""What an engine file says about itself: what was built, from what, for which machine, and how good it is. Data only.

The manifest is JSON at the end of the file. Fields may be added: a reader passes over those it doesn't know. Whatever
an older reader would get wrong needs another `FORMAT_VERSION`, which is checked before the manifest is read.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tandem.engine.models.spec import ModelSpec

FORMAT_VERSION = 1
"""Of the file's layout and of the manifest's meaning."""

PartKind = Literal["weights", "library", "text", "config"]


class SourceFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of the model that was built."""

    name: str
    size_bytes: int
    sha256: str


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """The model, as it was given and as it was found."""

    name: str
    """As on the command line: a catalogue name, a path, a hub id."""
    format: Literal["gguf", "folder"]
    sha256: str
    """Of the file; of the list of files and their hashes, where there are several."""
    files: tuple[SourceFile, ...] = ()


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The machine that the compiled code was made for. It is refused where any of this differs or is missing."""

    device: Literal["cpu", "cuda"]
    machine: str
    """Architecture, as `platform.machine()` says it: x86_64, aarch64."""
    instruction_set: str = ""
    """What the compiled code was made for, in a word a person knows: avx512, avx2."""
    cpu_features: tuple[str, ...] = ()
    """Flags of /proc/cpuinfo that the compiled code relies on."""
    compute_capability: str | None = None
    """Of the GPU: "9.0"."""
    torch: str
    """`torch.__version__`."""
    image_version: int
    """Layout of the packed weights, `IMAGE_VERSION` of the kernels that read them."""


class Quantization(msgspec.Struct, frozen=True, kw_only=True):
    """How the weights were rounded."""

    precision: str
    """As `--precision` takes it, never auto."""
    method: str = ""
    """round-to-nearest, awq, smoothquant, as stored, …"""
    group_size: int | None = None
    """Inputs that share a scale; None: a whole row, or each matrix as it came."""
    activations: str = "float"
    calibration: str = "none"
    """Which text, how many tokens of it."""


class Shapes(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes that the compiled code takes."""

    max_num_batched_tokens: int
    max_num_seqs: int | None = None
    """None: as many as there are tokens."""
    max_context: int | None = None
    """In tokens; None: the model's own."""
    buckets: tuple[int, ...] = ()
    """Batch sizes with code of their own. Empty: one token, and any number from 2 on."""


class KVLayout(msgspec.Struct, frozen=True, kw_only=True):
    """How keys and values lie, and which block sizes the compiled code allows."""

    dtype: str
    layout: str
    """Dimensions in their order."""
    num_groups: int
    min_block_size: int = 1
    max_block_size: int = 256
    """In tokens; powers of two between them."""


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """The built network against its reference, on held-out text."""

    reference: str
    """Against what: the model in its own type; a GGUF's dequantised weights."""
    num_tokens: int
    perplexity: float
    reference_perplexity: float
    mean_kl: float
    """Nats a token, reference to built."""
    top1_agreement: float
    """Share of tokens, teacher-forced, 0 to 1."""
    max_kl: float
    min_top1: float
    """The limits it was built under."""
    is_within_limits: bool


class Fusion(msgspec.Struct, frozen=True, kw_only=True):
    """A graph pass and how often it found something to rewrite."""

    name: str
    count: int


class LayerKernels(msgspec.Struct, frozen=True, kw_only=True):
    """How many kernels a part of the network takes a step, before the passes and after them."""

    layer: str
    """`embedding`, `layers.0`, …, `head`."""
    before: int
    after: int


class WeightEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One matrix or vector in the packed weights; what the kernels' `ImageEntry` says."""

    name: str
    """`layers.0.qkv`, `head`, …"""
    offset: int
    """Bytes from the start of the weights part."""
    size_bytes: int
    kind: str
    group_size: int = 0


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of the file; it begins at a multiple of 4096 bytes."""

    name: str
    """`weights`, `package.pt2`, `text/tokenizer.json`, …"""
    kind: PartKind
    offset: int
    size_bytes: int
    sha256: str


class EngineManifest(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. What a build makes without `parts`; `EngineWriter.finish` fills those in."""

    source: Source
    spec: ModelSpec
    dtype: str
    """Of the arithmetic between the products."""
    quantization: Quantization
    shapes: Shapes
    kv: KVLayout
    target: Target
    fingerprint: str
    """Of everything the file was built from; see `compiler/inputs.py`."""
    command: tuple[str, ...]
    """What builds it again: "tandem", "build", …"""
    tandem: str
    """Version of the package that built it."""
    built_at: str = ""
    """UTC, ISO 8601."""
    build_s: dict[str, float] = {}
    """Stage → seconds."""
    quality: Quality | None = None
    fusions: tuple[Fusion, ...] = ()
    kernels: tuple[LayerKernels, ...] = ()
    weights: tuple[WeightEntry, ...] = ()
    graphs: dict[str, Any] = {}
    """What the runner has to know of the compiled graphs; nobody else reads it."""
    parts: tuple[Part, ...] = ()

    @property
    def family(self) -> str:
        return self.spec.family

    @property
    def weights_bytes(self) -> int:
        """Of the packed image."""
        return sum(part.size_bytes for part in self.parts if part.kind == "weights")

    def part(self, name: str) -> Part | None:
        return next((part for part in self.parts if part.name == name), None)


def encode_manifest(manifest: EngineManifest, indent: int = 0) -> bytes:
    """JSON, in one line unless indented."""
    data = msgspec.json.encode(manifest, enc_hook=plain_text)
    return msgspec.json.format(data, indent=indent) if indent else data


def plain_text(value: Any) -> str:
    """For the encoder, which takes no subclasses: `torch.__version__` is one of str."""
    if isinstance(value, str):
        return str(value)
    raise TypeError(f"a manifest holds plain data, not {type(value).__name__}")


def decode_manifest(data: bytes | memoryview) -> EngineManifest:
    """Raises `msgspec.MsgspecError` (or `UnicodeDecodeError`) for what isn't a manifest."""
    return msgspec.json.decode(data, type=EngineManifest)
