"""A prompt's bytes as a chain of hashes, so that a policy can tell where a prefix was seen. Knows no tokens.

Entry i stands for everything up to the end of chunk i, the tenant's salt and the model included: two prompts share an
entry exactly if they agree on all bytes before it, and two tenants with salts of their own never do.
"""

from __future__ import annotations

import hashlib
from typing import Final

CHUNK_BYTES: Final = 512
"""About 128 tokens: 8 blocks of 16. Shorter prompts have no entry, for there is nothing to win."""
MAX_CHUNKS: Final = 1024
"""Of 512 KB. What two prompts share beyond that no longer changes where they go."""
_DIGEST_BYTES: Final = 16


def prefix_hashes(prompt: bytes | memoryview, salt: str) -> tuple[bytes, ...]:
    """The chain, coarse to fine in order. Costs about 1 ms for 400 KB."""
    view = memoryview(prompt)
    num_chunks = min(len(view) // CHUNK_BYTES, MAX_CHUNKS)
    if num_chunks == 0:
        return ()
    running = hashlib.sha256(salt.encode("utf-8", "surrogatepass") + b"\0")
    hashes = []
    for start in range(0, num_chunks * CHUNK_BYTES, CHUNK_BYTES):
        running.update(view[start : start + CHUNK_BYTES])
        hashes.append(running.digest()[:_DIGEST_BYTES])  # a digest does not end the running hash
    return tuple(hashes)
