"""The operators of compiled graphs, in torch's namespace `tandem`: what passes fuse a network into.

Importing this package registers them. Each has a declared signature (with what it writes to), a fake form for tracing,
and a plain torch form that is the oracle of every native one. Caches are written by operators that say so, and by
nothing else. On a GPU, those that have a Triton kernel call it.
"""

from __future__ import annotations

from tandem.engine.kernels.ops.activations import ROUND_GROUP, quantize_groups, quantize_tokens, round_activations
from tandem.engine.kernels.ops.attention import attention, rope_write, write_kv
from tandem.engine.kernels.ops.gate import gate, gate_quantized
from tandem.engine.kernels.ops.norms import add_rms_norm, add_rms_norm_quantized, rms_norm, rms_norm_quantized
from tandem.engine.kernels.ops.products import dequantize, int8_linear, quantized_embedding, quantized_linear

__all__ = [
    "ROUND_GROUP",
    "add_rms_norm",
    "add_rms_norm_quantized",
    "attention",
    "dequantize",
    "gate",
    "gate_quantized",
    "int8_linear",
    "quantize_groups",
    "quantize_tokens",
    "quantized_embedding",
    "quantized_linear",
    "rms_norm",
    "rms_norm_quantized",
    "rope_write",
    "round_activations",
    "write_kv",
]
