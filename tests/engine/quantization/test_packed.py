"""Other tools' checkpoints: every format's weights are what its description says, and variants are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tandem.core.errors import ModelDamaged, ModelUnsupported
from tandem.engine.loading.folder import FolderCheckpoint
from tandem.engine.loading.opening import open_checkpoint
from tandem.engine.loading.values import Values
from tandem.engine.quantization.matrix import QuantizedMatrix
from tandem.engine.quantization.model import quantize
from tandem.engine.quantization.packed import packed_format
from tandem.engine.quantization.recipe import Recipe
from tests.engine.quantization.checkpoints import meant, pack_rows, plain_folder, random_codes, repack

AWQ_PLACES = (0, 2, 4, 6, 1, 3, 5, 7)
Parts = tuple[dict[str, Tensor], Tensor]


def awq(base: str, shape: torch.Size, seed: int) -> Parts:
    codes, zeros, scales = random_codes(shape[0], shape[1], shape[1] // 32, seed)
    parts = {
        "qweight": pack_rows(codes.T, 4, AWQ_PLACES),
        "qzeros": pack_rows(zeros.T, 4, AWQ_PLACES),
        "scales": scales.T,
    }
    return {base + ending: tensor for ending, tensor in parts.items()}, meant(codes, zeros, scales)


def gptq(base: str, shape: torch.Size, seed: int, *, less: int = 1, shuffled: bool = False) -> Parts:
    codes, zeros, scales = random_codes(shape[0], shape[1], shape[1] // 32, seed)
    order = torch.arange(shape[1], dtype=torch.int32) // 32
    parts = {
        "qweight": pack_rows(codes, 4).T,
        "qzeros": pack_rows((zeros.T - less) % 16, 4),
        "scales": scales.T,
        "g_idx": order.flip(0) if shuffled else order,
    }
    return {base + ending: tensor for ending, tensor in parts.items()}, meant(codes, zeros, scales)


def pack_quantized(base: str, shape: torch.Size, seed: int, *, symmetric: bool = False) -> Parts:
    codes, zeros, scales = random_codes(shape[0], shape[1], shape[1] // 32, seed)
    parts = {
        "weight_packed": pack_rows(codes, 4),
        "weight_scale": scales,
        "weight_shape": torch.tensor(list(shape)),
    }
    if symmetric:
        zeros = torch.full_like(zeros, 8)
    else:
        parts["weight_zero_point"] = pack_rows(zeros.T, 4).T
    return {base + ending: tensor for ending, tensor in parts.items()}, meant(codes, zeros, scales)


def int_quantized(base: str, shape: torch.Size, seed: int) -> Parts:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(-127, 128, tuple(shape), generator=generator, dtype=torch.int8)
    scales = torch.rand(shape[0], 1, generator=generator) * 0.001 + 0.0001
    return {base + "weight": codes, base + "weight_scale": scales}, codes.float() * scales


def float_quantized(base: str, shape: torch.Size, seed: int) -> Parts:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randn(tuple(shape), generator=generator).to(torch.float8_e4m3fn)
    scales = torch.rand(shape[0], 1, generator=generator).bfloat16()
    return {base + "weight": codes, base + "weight_scale": scales}, codes.float() * scales.float()


def compressed(form: str, *, inputs: Any = None, **weights: Any) -> dict[str, Any]:
    scheme = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": scheme}}


AWQ = {"quant_method": "awq", "version": "gemm", "bits": 4, "group_size": 32, "zero_point": True}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
DYNAMIC = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}
CASES: dict[str, tuple[dict[str, Any], Any, str, str]] = {
    "awq": (AWQ, awq, "int4", "int8_group"),
    "gptq": (GPTQ, gptq, "int4", "int8_group"),
    "gptq_v2": (GPTQ | {"checkpoint_format": "gptq_v2"}, lambda *a: gptq(*a, less=0), "int4", "int8_group"),
    "packed": (compressed("pack-quantized", **INT4, symmetric=False), pack_quantized, "int4", "int8_group"),
    "packed, symmetric": (
        compressed("pack-quantized", **INT4, symmetric=True),
        lambda *a: pack_quantized(*a, symmetric=True),
        "int4",
        "int8_group",
    ),
    "w8a8": (
        compressed("int-quantized", inputs=DYNAMIC, num_bits=8, type="int", strategy="channel"),
        int_quantized,
        "int8",
        "int8_token",
    ),
    "fp8": (
        compressed("float-quantized", inputs=DYNAMIC, num_bits=8, type="float", strategy="channel"),
        float_quantized,
        "fp8",
        "float",
    ),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plain_folder(tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize("case", CASES)
def test_weights_are_what_the_format_says(plain: Path, tmp_path: Path, case: str) -> None:
    config, convert, kind, activations = CASES[case]
    wanted = repack(plain, tmp_path / "packed", config, convert)
    checkpoint = open_checkpoint(tmp_path / "packed")
    model = quantize(checkpoint, Recipe(precision="as-is"))
    assert len(wanted) == 2 * 7
    for name, weights in wanted.items():
        matrix = model.matrix(name)
        assert isinstance(matrix, QuantizedMatrix)
        assert (matrix.kind, matrix.activations) == (kind, activations)
        torch.testing.assert_close(matrix.dequantize(), weights, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(checkpoint.read(name, torch.float32), weights, rtol=1e-6, atol=1e-7)
    assert model.notes == [], "nothing is rounded a second time"
    if case == "packed, symmetric":
        first = model.matrix("model.layers.0.mlp.down_proj.weight")
        assert isinstance(first, QuantizedMatrix)
        assert first.offset is None


def test_shuffled_inputs_are_refused(plain: Path, tmp_path: Path) -> None:
    repack(plain, tmp_path / "packed", GPTQ | {"desc_act": True}, lambda *a: gptq(*a, shuffled=True))
    with pytest.raises(ModelUnsupported, match="another order"):
        quantize(FolderCheckpoint(tmp_path / "packed"), Recipe(precision="as-is"))


def test_scales_of_another_shape_are_damage(plain: Path, tmp_path: Path) -> None:
    repack(plain, tmp_path / "packed", AWQ | {"group_size": 64}, awq)
    with pytest.raises(ModelDamaged, match=r"qzeros has shape|scales has shape"):
        FolderCheckpoint(tmp_path / "packed")


def test_a_missing_part_is_damage(plain: Path, tmp_path: Path) -> None:
    def lacking(base: str, shape: torch.Size, seed: int) -> Parts:
        parts, weights = awq(base, shape, seed)
        return {name: tensor for name, tensor in parts.items() if not name.endswith("scales")}, weights

    repack(plain, tmp_path / "packed", AWQ, lacking)
    with pytest.raises(ModelDamaged, match="missing"):
        FolderCheckpoint(tmp_path / "packed")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "bitsandbytes"}, r"quantised \(bitsandbytes\)"),
        (AWQ | {"version": "gemv"}, "AWQ version gemv"),
        (AWQ | {"bits": 3}, "3 bits"),
        (GPTQ | {"bits": 3}, "GPTQ with 3 bits"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format marlin"),
        (compressed("marlin-24", **INT4), "format marlin-24"),
        (compressed("float-quantized", num_bits=8, type="float", strategy="block"), "strategy block"),
        (compressed("float-quantized", num_bits=4, type="float", strategy="group"), "4-bit float"),
        (
            compressed(
                "int-quantized", inputs=DYNAMIC | {"dynamic": False}, num_bits=8, type="int", strategy="channel"
            ),
            "static",
        ),
        ({"quant_method": "compressed-tensors", "format": "dense", "config_groups": {}}, "0 config_groups"),
    ],
)
def test_variants_are_refused_by_name(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelUnsupported, match=message):
        packed_format(Values({"quantization_config": config}, "config.json"))
