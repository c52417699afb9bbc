"""A network's weights as the native decoder wants them, and the one packed image of them that an engine file holds.

The image is the same on every instruction set: a matrix is panels of 32 outputs, each of them read front to back, with
its scales in front of the codes that they belong to. csrc/decoder.h has the layout, csrc/pack.cpp writes it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from tandem.core.errors import ModelDamaged, ModelUnsupported
from tandem.engine.kernels.cpu.native import DTYPES, Form, Kernels
from tandem.engine.models.spec import ModelSpec
from tandem.engine.quantization.matrix import QuantizedMatrix

IMAGE_VERSION = 1
"""Goes up with every change of the layout: an image of another version is not read."""

PANEL, HALF = 32, 16
PAGE, LINE = 4096, 64
GROUPS = (32, 64, 128)
KINDS = {"float32": 0, "bfloat16": 1, "int8": 2, "int4": 3, "fp8": 4}
ACTIVATIONS = {"float": 0, "int8_token": 1, "int8_group": 2}
OFFSET, WIDE_SCALES = 1, 2

Weight = QuantizedMatrix | Tensor


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Norms are what values are multiplied with (Gemma's 1 is in already)."""

    input_norm: Tensor
    mlp_norm: Tensor
    qkv: Weight
    """[(Q + 2 K) D, H]: q heads, k heads, v heads below one another."""
    o: Weight
    gate_up: Weight
    """[2 I, H]: gate rows, then up rows."""
    down: Weight
    qkv_bias: Tensor | None = None
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None
    post_attention_norm: Tensor | None = None
    post_mlp_norm: Tensor | None = None


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    layers: list[LayerWeights]
    head: Weight
    embedding: Weight | None
    """None: the head's, "tied"."""
    final_norm: Tensor


@dataclass(frozen=True, slots=True)
class ImageEntry:
    """A piece of the image."""

    name: str
    """`layers.0.qkv`, `layers.0.input_norm`, `head`, ..."""
    offset: int
    size_bytes: int
    kind: str
    """`vector`, or a matrix's type, what its product rounds inputs to, and marks: `int4 int8_group offset`."""
    group_size: int
    """0: a scale for a whole row, or none."""


def pack_image(spec: ModelSpec, weights: DecoderWeights, kernels: Kernels) -> tuple[Tensor, list[ImageEntry]]:
    """Returns the image, uint8 with one dimension, and where everything lies in it.

    Raises ModelUnsupported for what the kernels can't multiply, ModelDamaged for a wrong shape.
    """
    pieces = list(_pieces(spec, weights, kernels))
    entries: list[ImageEntry] = []
    size = 0
    for piece in pieces:
        start = -(-size // piece.alignment) * piece.alignment
        entries.append(ImageEntry(piece.name, start, piece.size_bytes, piece.kind, piece.group_size))
        size = start + piece.size_bytes
    image = torch.zeros(-(-size // PAGE) * PAGE, dtype=torch.uint8)
    for piece, entry in zip(pieces, entries, strict=True):
        piece.write(image[entry.offset : entry.offset + entry.size_bytes])
    return image, entries


def form_of(weight: Weight, name: str = "a matrix") -> Form:
    """How the kernels see it. Raises ModelUnsupported."""
    if isinstance(weight, Tensor):
        return Form(kind=KINDS["bfloat16" if weight.dtype == torch.bfloat16 else "float32"], activations=0)
    inputs, group = weight.codes.shape[1], weight.group_size
    if group == inputs and weight.kind != "int4":
        group = 0
    elif weight.kind == "fp8" or group not in GROUPS or inputs % group:
        raise ModelUnsupported(
            f"{name} has {inputs} inputs in groups of {group} ({weight.kind}). The CPU kernels take groups of "
            f"{', '.join(map(str, GROUPS))} that divide the inputs, and int8 and fp8 with one scale a row."
        )
    flags = OFFSET if weight.offset is not None else 0
    if weight.kind == "fp8" or not all(_halves_hold(t) for t in (weight.scale, weight.offset) if t is not None):
        flags |= WIDE_SCALES
    if (weight.activations == "float") != (weight.kind == "fp8"):
        raise ModelUnsupported(
            f"{name} is {weight.kind} with activations {weight.activations}; integers need int8 ones."
        )
    return Form(KINDS[weight.kind], ACTIVATIONS[weight.activations], group, flags)


def kind_text(form: Form) -> str:
    names = [name for name, code in KINDS.items() if code == form.kind]
    names += [name for name, code in ACTIVATIONS.items() if code == form.activations]
    names += [word for word, flag in _FLAGS.items() if form.flags & flag]
    return " ".join(names)


def parse_kind(entry: ImageEntry) -> Form:
    """The form that `kind_text` wrote."""
    words = entry.kind.split()
    try:
        return Form(KINDS[words[0]], ACTIVATIONS[words[1]], entry.group_size, sum(_FLAGS[word] for word in words[2:]))
    except (KeyError, IndexError):
        raise ModelDamaged(
            f"The image has {entry.name} as {entry.kind!r}, which this Tandem doesn't know. Build the engine again."
        ) from None


_FLAGS = {"offset": OFFSET, "wide": WIDE_SCALES}


def _halves_hold(values: Tensor) -> bool:
    return bool(torch.equal(values.half().float(), values))


class _Vector:
    """float32 values with zeros behind them, up to whole panels."""

    kind, group_size, alignment = "vector", 0, LINE

    def __init__(self, name: str, values: Tensor, rows: Tensor) -> None:
        """rows: which value each place takes; -1: zero."""
        self.name, self._values, self._rows = name, values, rows
        self.size_bytes = 4 * len(rows)

    def write(self, out: Tensor) -> None:
        values = torch.cat([self._values.float(), torch.zeros(1)])
        out.view(torch.float32).copy_(values[self._rows.long()])


class _Matrix:
    """Panels of the rows named by `rows`; -1: a row of zeros."""

    alignment = PAGE

    def __init__(self, name: str, weight: Weight, rows: Tensor, kernels: Kernels) -> None:
        self.name, self._rows = name, rows.int().contiguous()
        self._library, self._form = kernels.library, form_of(weight, name)
        if isinstance(weight, Tensor) and weight.dtype not in (torch.float32, torch.bfloat16):
            weight = weight.float()
        self._weight = weight
        self._inputs = weight.shape[1]
        self.kind, self.group_size = kind_text(self._form), self._form.group
        panel = self._library.tandem_panel_bytes(ctypes.byref(self._form), self._inputs)
        self.size_bytes = len(rows) // PANEL * int(panel)

    def write(self, out: Tensor) -> None:
        weight = self._weight
        scale = offset = None
        if isinstance(weight, QuantizedMatrix):
            rows, source = weight.codes.contiguous(), DTYPES["uint8"]
            scale, offset = weight.scale.float().contiguous(), weight.offset
            offset = offset.float().contiguous() if offset is not None else None
        else:
            rows, source = weight.contiguous(), DTYPES[str(weight.dtype).removeprefix("torch.")]
        self._library.tandem_pack(
            ctypes.byref(self._form),
            len(self._rows),
            self._inputs,
            self._rows.data_ptr(),
            rows.data_ptr(),
            source,
            scale.data_ptr() if scale is not None else None,
            offset.data_ptr() if offset is not None else None,
            out.data_ptr(),
        )


def _pieces(spec: ModelSpec, weights: DecoderWeights, kernels: Kernels) -> Iterator[_Vector | _Matrix]:
    maps = RowMaps(spec)
    if len(weights.layers) != spec.num_layers:
        raise ModelDamaged(
            f"There are {len(weights.layers)} layers of weights; the configuration says {spec.num_layers}."
        )
    for index, layer in enumerate(weights.layers):
        yield from _layer_pieces(f"layers.{index}.", layer, maps, kernels)
    yield _vector("final_norm", weights.final_norm, maps.hidden)
    yield _matrix("head", weights.head, maps.vocab, maps.sizes["hidden"], kernels)
    if weights.embedding is not None:
        yield _matrix("embedding", weights.embedding, maps.vocab, maps.sizes["hidden"], kernels)


def _layer_pieces(at: str, layer: LayerWeights, maps: RowMaps, kernels: Kernels) -> Iterator[_Vector | _Matrix]:
    vectors = (
        ("input_norm", layer.input_norm, maps.hidden),
        ("mlp_norm", layer.mlp_norm, maps.hidden),
        ("post_attention_norm", layer.post_attention_norm, maps.hidden),
        ("post_mlp_norm", layer.post_mlp_norm, maps.hidden),
        ("q_norm", layer.q_norm, maps.head),
        ("k_norm", layer.k_norm, maps.head),
        ("qkv_bias", layer.qkv_bias, maps.qkv),
    )
    for name, values, rows in vectors:
        if values is not None:
            yield _vector(at + name, values, rows)
    sizes = maps.sizes
    for name, weight, rows, inputs in (
        ("qkv", layer.qkv, maps.qkv, sizes["hidden"]),
        ("o", layer.o, maps.hidden, sizes["attention"]),
        ("gate_up", layer.gate_up, maps.gate_up, sizes["hidden"]),
        ("down", layer.down, maps.hidden, sizes["mlp"]),
    ):
        yield _matrix(at + name, weight, rows, inputs, kernels)


def _vector(name: str, values: Tensor, rows: Tensor) -> _Vector:
    if len(values) != int(rows.max()) + 1:
        raise ModelDamaged(f"{name} has {len(values)} values; the configuration says {int(rows.max()) + 1}.")
    return _Vector(name, values, rows)


def _matrix(name: str, weight: Weight, rows: Tensor, inputs: int, kernels: Kernels) -> _Matrix:
    expected = (int(rows.max()) + 1, inputs)
    if tuple(weight.shape) != expected:
        raise ModelDamaged(f"{name} has the shape {list(weight.shape)}; the configuration says {list(expected)}.")
    return _Matrix(name, weight, rows, kernels)


class RowMaps:
    """For each kind of matrix, which row of the given one each row of the packed one is; -1: padding."""

    def __init__(self, spec: ModelSpec) -> None:
        self.sizes = {
            "hidden": spec.hidden_size,
            "attention": spec.num_heads * spec.head_dim,
            "mlp": spec.intermediate_size,
        }
        self.hidden = _padded(torch.arange(spec.hidden_size), PANEL)
        self.head = _padded(torch.arange(spec.head_dim), PANEL)
        self.vocab = _padded(torch.arange(spec.vocab_size), PANEL)
        heads = torch.arange((spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim).view(-1, spec.head_dim)
        self.qkv = torch.full((len(heads), len(self.head)), -1)
        self.qkv[:, : spec.head_dim] = heads
        self.qkv = self.qkv.flatten()
        # Gate and up, sixteen by sixteen: a tile then has both of what becomes one value.
        gate = _padded(torch.arange(spec.intermediate_size), HALF).view(-1, 1, HALF)
        up = torch.where(gate >= 0, gate + spec.intermediate_size, -1)
        self.gate_up = torch.cat([gate, up], 1).flatten()


def _padded(rows: Tensor, multiple: int) -> Tensor:
    return torch.cat([rows, rows.new_full((-len(rows) % multiple,), -1)])
