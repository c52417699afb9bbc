"""Names for the content of blocks.

A full block is named by SHA-256 over the name of the block before it and its own tokens, so equal names mean equal
tokens from the very start. What else its KV depends on (salt, adapter) goes into the root of the chain, each under its
own tag and with its length, so that no salt can be made to look like an adapter. The seed is shared by a deployment's
replicas and keeps outsiders from guessing names. Never Python's `hash`: it differs from process to process and is 64
bits wide.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from functools import lru_cache

from tandem.core.request import Request
from tandem.core.types import BlockHash

_WIDTH_CODE = "I"
assert array(_WIDTH_CODE).itemsize == 4


class BlockHasher:
    """Names blocks of `block_size` tokens."""

    def __init__(self, block_size: int, seed: str = "") -> None:
        self._block_size = block_size
        self._seed = _tagged(b"seed", seed.encode()) + _tagged(b"block_size", str(block_size).encode())
        self._root = lru_cache(maxsize=1024)(self._make_root)

    def extend(self, request: Request) -> None:
        """Append the names of the request's known full blocks that have none yet."""
        hashes, tokens, size = request.block_hashes, request.token_ids, self._block_size
        parent = hashes[-1] if hashes else self._root(request.cache_salt, None)
        for start in range(len(hashes) * size, len(tokens) - size + 1, size):
            parent = BlockHash(hashlib.sha256(parent + _token_bytes(tokens[start : start + size])).digest())
            hashes.append(parent)

    def _make_root(self, salt: str | None, adapter: str | None) -> BlockHash:
        parts = self._seed
        if salt is not None:
            parts += _tagged(b"salt", salt.encode("utf-8", "surrogatepass"))
        if adapter is not None:
            parts += _tagged(b"adapter", adapter.encode("utf-8", "surrogatepass"))
        return BlockHash(hashlib.sha256(parts).digest())


def _tagged(tag: bytes, value: bytes) -> bytes:
    return tag + b":" + str(len(value)).encode() + b":" + value + b";"


def _token_bytes(tokens: list[int]) -> bytes:
    packed = array(_WIDTH_CODE, tokens)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()
