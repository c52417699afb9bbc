"""The tensor types that Tandem reads from GGUF, and how they lie in memory. Knows nothing of files or arithmetic.

Layouts are those of ggml: a row is cut into blocks of `block_length` elements; each block takes `block_bytes` bytes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GGMLType:
    """One element type; the plain ones are blocks of a single element."""

    name: str
    block_length: int
    """Elements in a block. A row's length is a multiple of it: blocks never straddle rows."""
    block_bytes: int

    def num_bytes(self, num_elements: int) -> int:
        return num_elements // self.block_length * self.block_bytes


F32 = GGMLType("F32", 1, 4)
F16 = GGMLType("F16", 1, 2)
BF16 = GGMLType("BF16", 1, 2)
Q4_0 = GGMLType("Q4_0", 32, 2 + 16)
Q4_1 = GGMLType("Q4_1", 32, 2 + 2 + 16)
Q5_0 = GGMLType("Q5_0", 32, 2 + 4 + 16)
Q5_1 = GGMLType("Q5_1", 32, 2 + 2 + 4 + 16)
Q8_0 = GGMLType("Q8_0", 32, 2 + 32)
Q2_K = GGMLType("Q2_K", 256, 16 + 64 + 2 + 2)
Q3_K = GGMLType("Q3_K", 256, 32 + 64 + 12 + 2)
Q4_K = GGMLType("Q4_K", 256, 2 + 2 + 12 + 128)
Q5_K = GGMLType("Q5_K", 256, 2 + 2 + 12 + 32 + 128)
Q6_K = GGMLType("Q6_K", 256, 128 + 64 + 16 + 2)

TYPES: dict[int, GGMLType] = {
    0: F32,
    1: F16,
    2: Q4_0,
    3: Q4_1,
    6: Q5_0,
    7: Q5_1,
    8: Q8_0,
    10: Q2_K,
    11: Q3_K,
    12: Q4_K,
    13: Q5_K,
    14: Q6_K,
    30: BF16,
}
"""Number in the file → type."""

OTHER_TYPES: dict[int, str] = {
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
}
"""Number → name of types that exist but that Tandem doesn't read, so that a refusal can name them."""
