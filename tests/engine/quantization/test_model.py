"""Whole models: what each recipe makes, that sizes keep their promises, and that GGUF blocks lose nothing."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
import torch
from torch import Tensor

from tandem.core.errors import ConfigError
from tandem.engine.loading.opening import open_checkpoint
from tandem.engine.quantization.calibration import Calibration
from tandem.engine.quantization.dense import DOWN, GATE, UP, O, Q, V
from tandem.engine.quantization.matrix import QuantizedMatrix
from tandem.engine.quantization.model import QuantizedModel, quantize
from tandem.engine.quantization.recipe import Precision, Recipe
from tests.engine.loading.tiny_models import save_gguf, tiny_model
from tests.engine.models.tiny import llama_config, save_random

AT = "model.layers.1."


def form(model: QuantizedModel, name: str) -> tuple[str, int, bool, str]:
    matrix = model.matrix(name)
    assert isinstance(matrix, QuantizedMatrix)
    return matrix.kind, matrix.group_size, matrix.offset is None, matrix.activations


def test_what_each_recipe_makes(tiny_llama: Path, calibration: Calibration) -> None:
    """(kind, group, symmetric, activations) of down_proj, whose rows have 128 inputs, and of the head, with 64."""
    wanted = {
        "int8": (("int8", 128, True, "int8_group"), ("int8", 64, True, "int8_group")),
        "int4": (("int4", 128, False, "int8_group"), ("int4", 32, False, "int8_group")),
        "awq": (("int4", 128, False, "int8_group"), ("int4", 32, False, "int8_group")),
        "gptq": (("int4", 128, False, "int8_group"), ("int4", 32, False, "int8_group")),
        "w8a8": (("int8", 128, True, "int8_token"), ("int8", 64, True, "int8_group")),
        "smoothquant": (("int8", 128, True, "int8_token"), ("int8", 64, True, "int8_group")),
        "fp8": (("fp8", 128, True, "float"), ("fp8", 64, True, "float")),
    }
    assert set(wanted) == set(get_args(Precision)) - {"bf16", "fp32", "as-is"}
    for precision, (down, head) in wanted.items():
        model = quantize(open_checkpoint(tiny_llama), Recipe(precision=precision), calibration=calibration)  # type: ignore[arg-type]
        assert form(model, AT + DOWN) == down, precision
        assert form(model, "lm_head.weight") == form(model, "model.embed_tokens.weight") == head, precision


def test_products_with_one_input_have_one_form(tiny_llama: Path, calibration: Calibration) -> None:
    model = quantize(open_checkpoint(tiny_llama), Recipe(precision="int4", group_size=32), calibration=calibration)
    assert form(model, AT + Q) == form(model, AT + V)
    assert form(model, AT + GATE) == form(model, AT + UP)


def test_a_group_that_does_not_divide_becomes_smaller_and_says_so(tiny_llama: Path) -> None:
    model = quantize(open_checkpoint(tiny_llama), Recipe(precision="int4", group_size=128))
    assert form(model, AT + O)[1] == 64
    assert model.notes == ["products of 64 inputs have groups of 64, for 128 doesn't divide them"]


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (Recipe(precision="nvfp4"), "needs a GPU with 4-bit floats .* take awq or int4"),  # type: ignore[arg-type]
        (Recipe(precision="mxfp4"), "needs a GPU"),  # type: ignore[arg-type]
        (Recipe(precision="int3"), "'int3' is unknown; there are bf16"),  # type: ignore[arg-type]
        (Recipe(precision="int4", group_size=0), "group_size 0 isn't possible for int4; 32, 64, 128 are"),
        (Recipe(precision="int8", group_size=48), "0, 32, 64, 128 are"),
        (Recipe(precision="w8a8", group_size=32), "w8a8 has no groups"),
        (Recipe(precision="awq"), "no calibration text was given"),
        (Recipe(precision="int4", compensate=True), "no calibration text was given"),
        (Recipe(precision="as-is"), "isn't quantised"),
        (Recipe(precision="int4", head="int2"), "head precision 'int2' is unknown"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_is_refused(tiny_llama: Path, recipe: Recipe, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        quantize(open_checkpoint(tiny_llama), recipe)


def test_rows_that_no_group_divides_are_refused(tmp_path: Path) -> None:
    save_random(llama_config(intermediate_size=100, num_hidden_layers=1), tmp_path)
    with pytest.raises(ConfigError, match="down_proj has 100 inputs"):
        quantize(open_checkpoint(tmp_path), Recipe(precision="int4"))
    quantize(open_checkpoint(tmp_path), Recipe(precision="w8a8"))


def test_calibration_of_another_tokenizer_is_refused(tiny_llama: Path) -> None:
    foreign = Calibration(torch.full((2, 300), 5000), "foreign", "")
    with pytest.raises(ConfigError, match="the model's own tokenizer"):
        quantize(open_checkpoint(tiny_llama), Recipe(precision="awq"), calibration=foreign)


def test_progress_counts_layers(tiny_llama: Path) -> None:
    seen: list[tuple[int, int]] = []
    recipe = Recipe(precision="w8a8")
    quantize(open_checkpoint(tiny_llama), recipe, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_gguf_blocks_are_taken_to_the_last_bit(tmp_path: Path, kind: str) -> None:
    path = save_gguf(tmp_path / "m.gguf", "llama", tiny_model("llama"), {"_q.weight": kind, "_down.weight": kind})
    checkpoint = open_checkpoint(path)
    model = quantize(checkpoint, Recipe(precision="as-is"))
    matrix = model.matrix(AT + DOWN)
    assert isinstance(matrix, QuantizedMatrix)
    assert (matrix.bits, matrix.group_size) == (8 if kind == "Q8_0" else 4, 32)
    assert torch.equal(matrix.dequantize(), checkpoint.read(AT + DOWN, torch.float32))


def test_unequal_gguf_types_in_one_product_lose_nothing(tmp_path: Path) -> None:
    kinds = {"attn_q.weight": "Q4_0", "attn_k.weight": "Q4_1", "attn_v.weight": "Q8_0"}
    checkpoint = open_checkpoint(save_gguf(tmp_path / "m.gguf", "llama", tiny_model("llama"), kinds))
    model = quantize(checkpoint, Recipe(precision="as-is"))
    forms = {form(model, f"{AT}self_attn.{which}_proj.weight") for which in "qkv"}
    assert forms == {("int8", 32, False, "int8_group")}
    for which in "qkv":
        name = f"{AT}self_attn.{which}_proj.weight"
        matrix = model.matrix(name)
        assert isinstance(matrix, QuantizedMatrix)
        torch.testing.assert_close(matrix.dequantize(), checkpoint.read(name, torch.float32), rtol=1e-6, atol=1e-6)


def test_other_gguf_types_are_rounded_again_and_named(tmp_path: Path) -> None:
    path = save_gguf(tmp_path / "m.gguf", "llama", tiny_model("llama"), {"attn_output.weight": "Q5_0"})
    checkpoint = open_checkpoint(path)
    model = quantize(checkpoint, Recipe(precision="as-is"))
    assert model.notes == ["2 matrices of type Q5_0 were rounded again, to int8 in groups of 32"]
    assert form(model, AT + O) == ("int8", 32, True, "int8_group")
    assert isinstance(model.matrix(AT + DOWN), Tensor), "plain numbers stay plain"


def test_sizes_of_the_default_model(smollm2: Path) -> None:
    limits: dict[Precision, float] = {"as-is": 0.37, "int8": 0.55, "w8a8": 0.55, "int4": 0.30}
    for precision, most in limits.items():
        model = quantize(open_checkpoint(smollm2), Recipe(precision=precision, search=False))
        assert model.num_bytes <= most * model.num_bytes_bf16, precision
