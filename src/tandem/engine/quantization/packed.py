"""What other tools' quantised checkpoints are made of: config.json's `quantization_config`, and each weight's tensors.

Read at opening, without torch; the bits themselves are `unpacking.py`'s. Formats: AWQ (version GEMM), GPTQ (and its
v2), and compressed-tensors' pack-quantized, int-quantized and float-quantized. Everything else is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tandem.core.errors import ModelDamaged, ModelUnsupported
from tandem.engine.loading.values import Values

PackedKind = Literal["awq", "gptq", "pack-quantized", "int-quantized", "float-quantized"]
Shape = tuple[int, ...]

ENDINGS: dict[PackedKind, tuple[str, ...]] = {
    "awq": ("qweight", "qzeros", "scales"),
    "gptq": ("qweight", "qzeros", "scales", "g_idx"),
    "pack-quantized": ("weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx"),
    "int-quantized": ("weight", "weight_scale", "weight_zero_point"),
    "float-quantized": ("weight", "weight_scale", "input_scale"),
}
"""The tensors that a weight may consist of; the first holds the codes, and the next but GPTQ's zeros must be there."""
SCALES = {"awq": "scales", "gptq": "scales"}
DTYPES = ("I32", "I8", "I64", "F8_E4M3")
"""Types of tensors in such checkpoints, beside the plain ones."""


@dataclass(frozen=True, slots=True)
class PackedFormat:
    """How all packed weights of one checkpoint are stored."""

    kind: PackedKind
    bits: int
    group_size: int
    """Inputs that share a scale; 0: the whole row."""
    zero_plus_one: bool = False
    """GPTQ's first format stores zeros less one."""
    rounds_activations: bool = False
    """Made for int8 activations with a scale a token."""

    def parts(self, name: str, stored: Mapping[str, Any]) -> dict[str, str]:
        """Ending → stored name of the tensors that make up the weight `name`; empty where it is stored plainly."""
        base = name.removesuffix("weight")
        found = {ending: base + ending for ending in ENDINGS[self.kind] if base + ending in stored}
        scale = SCALES.get(self.kind, "weight_scale")
        return found if ENDINGS[self.kind][0] in found and scale in found else {}

    def shape(self, name: str, parts: Mapping[str, Shape], source: str) -> Shape:
        """[N, K] of the weight whose tensors have these shapes. Raises `ModelDamaged` where they don't fit together."""
        for ending, shape in parts.items():
            if len(shape) != 2 and ending not in (
                "g_idx",
                "weight_g_idx",
                "weight_shape",
                "weight_scale",
                "input_scale",
            ):
                raise ModelDamaged(f"{source}: tensor {name}'s {ending} has shape {list(shape)}; it must be a matrix.")
        n, k = self._logical(parts[ENDINGS[self.kind][0]])
        for ending, wanted in self._expected(n, k):
            if ending in parts and parts[ending] not in wanted:
                raise ModelDamaged(
                    f"{source}: tensor {name}'s {ending} has shape {list(parts[ending])};"
                    f" it should have {' or '.join(str(list(shape)) for shape in wanted)}."
                )
        return n, k

    def _logical(self, codes: Shape) -> tuple[int, int]:
        per_word = 32 // self.bits
        if self.kind == "awq":
            return codes[1] * per_word, codes[0]
        if self.kind == "gptq":
            return codes[1], codes[0] * per_word
        return (codes[0], codes[1] * per_word) if self.kind == "pack-quantized" else (codes[0], codes[1])

    def _expected(self, n: int, k: int) -> Iterator[tuple[str, tuple[Shape, ...]]]:
        groups, per_word = -(-k // (self.group_size or k)), 32 // self.bits
        if k % groups or (self.group_size and k % self.group_size):
            groups = -1  # no shape has this: a last group that is cut short isn't read
        yield "scales", ((groups, n),)
        yield "qzeros", ((groups, n // per_word),)
        yield "g_idx", ((k,),)
        yield "weight_scale", ((n, groups), *(((1,), (1, 1), (), (n,)) if groups == 1 else ()))
        yield "weight_zero_point", ((n, groups), (-(-n // per_word), groups))
        yield "weight_shape", ((2,),)


def packed_format(config: Values) -> PackedFormat | None:
    """What config.json says of packed weights; None where it says nothing. Raises `ModelUnsupported`."""
    if "quantization_config" not in config:
        return None
    section = config.section("quantization_config")
    method = section.text("quant_method", "an unnamed method")
    if method == "awq":
        return _awq(section)
    if method == "gptq":
        return _gptq(section)
    if method == "compressed-tensors":
        return _compressed(section)
    raise ModelUnsupported(
        f"{config.source}: the weights are quantised ({method}), which isn't supported; awq, gptq, compressed-tensors,"
        " the original and GGUFs are."
    )


def _awq(section: Values) -> PackedFormat:
    version = section.text("version", "gemm").lower()
    if version != "gemm":
        raise _unsupported(section, f"AWQ version {version}", "gemm is")
    bits = section.integer("bits", section.integer("w_bit", 4))
    if bits != 4:
        raise _unsupported(section, f"AWQ with {bits} bits", "4 are")
    return PackedFormat("awq", 4, _group(section, "group_size", section.get("q_group_size")))


def _gptq(section: Values) -> PackedFormat:
    bits = section.integer("bits")
    if bits not in (4, 8):
        raise _unsupported(section, f"GPTQ with {bits} bits", "4 and 8 are")
    form = section.text("checkpoint_format", "gptq").lower()
    if form not in ("gptq", "gptq_v2"):
        raise _unsupported(section, f"GPTQ's checkpoint_format {form}", "gptq and gptq_v2 are")
    return PackedFormat("gptq", bits, _group(section, "group_size"), zero_plus_one=form == "gptq")


def _compressed(section: Values) -> PackedFormat:
    groups = section.section("config_groups")
    schemes = [groups.section(name) for name in groups.raw]
    if len(schemes) != 1:
        raise _unsupported(section, f"compressed-tensors with {len(schemes)} config_groups", "one is")
    form = schemes[0].text("format", section.text("format", "not named"))
    weights, inputs = schemes[0].section("weights"), schemes[0].section("input_activations")
    bits, kind, strategy = weights.integer("num_bits"), weights.text("type", "int"), weights.text("strategy", "tensor")
    fits = {"pack-quantized": ("int", (4, 8)), "int-quantized": ("int", (8,)), "float-quantized": ("float", (8,))}
    if form not in fits:
        raise _unsupported(section, f"compressed-tensors' format {form}", f"{', '.join(fits)} are")
    if kind != fits[form][0] or bits not in fits[form][1]:
        raise _unsupported(section, f"{form} of {bits}-bit {kind}", "8-bit float or 4- and 8-bit int are")
    if strategy not in ("group", "channel", "tensor"):
        raise _unsupported(section, f"{form} with strategy {strategy}", "group, channel and tensor are")
    if inputs.raw and kind == "int" and (inputs.integer("num_bits") != 8 or not inputs.flag("dynamic")):
        raise _unsupported(section, "activations of other than 8 bits or with static scales", "dynamic int8 is")
    group_size = _group(weights, "group_size") if strategy == "group" else 0
    rounds = bool(inputs.raw) and kind == "int"
    return PackedFormat(form, bits, group_size, rounds_activations=rounds)  # type: ignore[arg-type]


def _group(section: Values, key: str, other: object = None) -> int:
    """-1, which stands for the whole row, becomes 0."""
    size: Any = section.get(key) if key in section else other
    if not isinstance(size, int) or isinstance(size, bool) or size == 0 or size < -1:
        raise ModelDamaged(f"{section.source}: {key} is {size!r}; it must be a number of weights, or -1.")
    return max(size, 0)


def _unsupported(section: Values, what: str, instead: str) -> ModelUnsupported:
    return ModelUnsupported(f"{section.source}: {what} isn't supported; {instead}. Use the original or a GGUF.")
