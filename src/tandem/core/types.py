"""Distinct names for values that look alike, and the closed sets of choices.

Nothing here has behaviour; a type checker is what makes these useful.
"""

from __future__ import annotations

from typing import Literal, NewType

TokenId = int
"""An index into the model's vocabulary. A plain int: token lists are far too hot to wrap."""

BlockId = NewType("BlockId", int)
"""Index of a physical block of the pool."""

BlockHash = NewType("BlockHash", bytes)
"""SHA-256 over a block's tokens, the hash of the block before it, and what else its KV depends on (salt, adapter)."""

ServiceClass = Literal["interactive", "batch"]
"""What kind of goal a request has: latency (interactive) or a deadline (batch)."""

FinishReason = Literal["stop", "length", "abort", "error"]
"""Why a generation ended: a stop condition, a length limit, the client went away, or the engine failed it."""

DType = Literal["float32", "bfloat16", "float16"]
"""Element types of weights and arithmetic, by torch's names but without torch."""

KVDType = Literal["float32", "bfloat16", "float16", "int8"]
"""Element types of KV. int8 has a float32 scale for each token and head, for keys and for values."""
