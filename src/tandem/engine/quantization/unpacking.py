"""The bits of other tools' packings, as a `QuantizedMatrix` that stands for the same weights.

All of them mean w = (code - zero) · scale. What differs is the order of codes within 32-bit words, and along which side
words are packed.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tandem.core.errors import ModelUnsupported
from tandem.engine.quantization.matrix import Activations, QuantizedMatrix
from tandem.engine.quantization.packed import PackedFormat

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The column, within its eight, of each nibble of a word, lowest first."""


def unpack(form: PackedFormat, parts: Mapping[str, Tensor], shape: tuple[int, int], source: str) -> QuantizedMatrix:
    """parts: ending → tensor, of shapes that `form.shape` has checked. Raises `ModelUnsupported`."""
    if form.kind == "float-quantized":
        scale = _scales(parts["weight_scale"], shape[0])
        return QuantizedMatrix(parts["weight"].view(torch.float8_e4m3fn), scale, None, "fp8", "float")
    if form.kind == "awq":
        return _awq(form, parts)
    if form.kind == "gptq":
        return _gptq(form, parts, source)
    return _compressed(form, parts, shape, source)


def _awq(form: PackedFormat, parts: Mapping[str, Tensor]) -> QuantizedMatrix:
    """Words run along the outputs: qweight [K, N / 8], qzeros [groups, N / 8], scales [groups, N]."""
    codes = _words(parts["qweight"], 4, AWQ_ORDER).T
    zeros = _words(parts["qzeros"], 4, AWQ_ORDER).T if "qzeros" in parts else torch.full(parts["scales"].T.shape, 8)
    return _matrix(form, codes, zeros, parts["scales"].T)


def _gptq(form: PackedFormat, parts: Mapping[str, Tensor], source: str) -> QuantizedMatrix:
    """Words run along the inputs in qweight [K / 8, N], along the outputs in qzeros [groups, N / 8]."""
    codes = _words(parts["qweight"].T, form.bits)
    _refuse_order(parts.get("g_idx"), form, codes.shape[1], source)
    if "qzeros" in parts:
        zeros = _words(parts["qzeros"], form.bits).T.int() + form.zero_plus_one
        zeros &= (1 << form.bits) - 1  # 0 less one is kept as all ones
    else:
        zeros = torch.full(parts["scales"].T.shape, 1 << (form.bits - 1))
    return _matrix(form, codes, zeros, parts["scales"].T)


def _compressed(
    form: PackedFormat, parts: Mapping[str, Tensor], shape: tuple[int, int], source: str
) -> QuantizedMatrix:
    """Signed codes, packed after half their range is added; zeros likewise, or as plain int8."""
    half = 1 << (form.bits - 1)
    if "weight_packed" in parts:
        codes = _words(parts["weight_packed"], form.bits)
        told = parts.get("weight_shape")
        if told is not None and told.tolist() != list(shape):
            raise ModelUnsupported(f"{source} is padded to {list(shape)} from {told.tolist()}, which isn't supported.")
    else:
        codes = (parts["weight"].short() + half).to(torch.uint8)
    _refuse_order(parts.get("weight_g_idx"), form, shape[1], source)
    scale = _scales(parts["weight_scale"], shape[0])
    zeros = parts.get("weight_zero_point")
    if zeros is None:
        zeros = torch.full(scale.shape, half)
    elif zeros.dtype == torch.int32 and "weight_packed" in parts:
        zeros = _words(zeros.T, form.bits).T[: shape[0]]
    else:
        zeros = zeros.int() + half
    return _matrix(form, codes, zeros, scale)


def _matrix(form: PackedFormat, codes: Tensor, zeros: Tensor, scale: Tensor) -> QuantizedMatrix:
    wide, zeros = scale.float().contiguous(), zeros.float()
    symmetric = bool((zeros == 1 << (form.bits - 1)).all())
    activations: Activations = "int8_token" if form.rounds_activations else "int8_group"
    kind = "int4" if form.bits == 4 else "int8"
    offset = None if symmetric else (-zeros * wide).contiguous()
    return QuantizedMatrix(codes.contiguous(), wide, offset, kind, activations)  # type: ignore[arg-type]


def _words(words: Tensor, bits: int, order: tuple[int, ...] | None = None) -> Tensor:
    """int32 [rows, columns] → codes, uint8 [rows, columns · 32 / bits], lowest bits first unless `order` says else."""
    per_word = 32 // bits
    shifts = torch.arange(per_word, dtype=torch.int32) * bits
    fields = (words.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)
    if order is not None:
        fields = fields[..., torch.tensor(order).argsort()]
    return fields.to(torch.uint8).flatten(-2)


def _scales(scale: Tensor, num_rows: int) -> Tensor:
    """[N, groups], also where there is one scale for all."""
    wide = scale.float()
    return wide.reshape(-1, 1).expand(num_rows, 1).contiguous() if wide.numel() in (1, num_rows) else wide


def _refuse_order(order: Tensor | None, form: PackedFormat, num_inputs: int, source: str) -> None:
    """Inputs sorted by importance before they are grouped (desc_act, actorder): groups aren't neighbours then."""
    if order is None:
        return
    size = form.group_size or num_inputs
    if not torch.equal(order.long(), torch.arange(num_inputs) // size):
        raise ModelUnsupported(
            f"{source} has its inputs in another order (desc_act, or actorder), which isn't supported; use a checkpoint"
            " made without, or the original."
        )
