"""What each replica probably holds in its prefix cache, by what was sent to it. Bounded, for each replica.

Names are the gateway's own: hashes over the prompt's bytes, chunk by chunk, each covering everything before it. The
engine names its blocks by tokens, which the gateway never sees, so the two can't be compared. Three things keep the
index near the truth nevertheless: it forgets in the engine's own order (least recently used, tails before heads); its
size follows the engine's memory, and shrinks by as much as the engine says it has evicted (`evicted`, `resync`, from
KV events); and the cached tokens that the engine reports with each answer correct what was wrong (`correct`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

MAX_REPLICAS: Final = 4096


class _Held:
    """One replica's: chunk hash → tokens in the chunk; least recently used first."""

    __slots__ = ("chunks", "num_evicted_tokens", "num_tokens")

    def __init__(self) -> None:
        self.chunks: OrderedDict[bytes, int] = OrderedDict()
        self.num_tokens = 0
        self.num_evicted_tokens = 0
        """That the engine has evicted and that don't make up a chunk yet: its blocks are smaller."""

    def drop_oldest(self) -> int:
        _, tokens = self.chunks.popitem(last=False)
        self.num_tokens -= tokens
        return tokens


class PrefixIndex:
    """replica id → chunks of prompts that it holds.

    Invariant: whoever holds a chunk of a chain holds all before it. Every touch goes from tail to head, so a head is
    always younger than its tails, and the oldest entry is a tail. This is what lets `num_hits` search by halves.
    """

    def __init__(self, max_entries: int = 16_384) -> None:
        """`max_entries`: chunks kept for each replica."""
        self._max_entries = max_entries
        self._held: OrderedDict[str, _Held] = OrderedDict()

    def num_hits(self, replica_id: str, hashes: Sequence[bytes]) -> int:
        """How many chunks of this chain the replica holds, from its start."""
        held = self._held.get(replica_id)
        if held is None or not hashes or hashes[0] not in held.chunks:
            return 0
        low, high = 1, len(hashes)
        while low < high:
            middle = (low + high + 1) // 2
            if hashes[middle - 1] in held.chunks:
                low = middle
            else:
                high = middle - 1
        return low

    def add(self, replica_id: str, hashes: Sequence[bytes], prompt_tokens: int) -> None:
        """The replica was sent this prompt. What is longer than the bound is remembered by its beginning."""
        hashes = hashes[: self._max_entries]
        if not hashes:
            return
        held = self._of(replica_id)
        tokens = max(1, prompt_tokens // len(hashes))
        chunks = held.chunks
        for chunk in reversed(hashes):
            if chunk in chunks:
                chunks.move_to_end(chunk)
            else:
                chunks[chunk] = tokens
                held.num_tokens += tokens
        while len(chunks) > self._max_entries:
            held.drop_oldest()

    def correct(self, replica_id: str) -> None:
        """An answer showed that the engine no longer held what the index said: it evicts more than was thought.

        The prompt in question is computed and so held again; what is older than it is what must be doubted. A quarter
        goes each time, so a wrong index is small after a few answers and a single odd answer does little harm.
        """
        held = self._held.get(replica_id)
        if held is not None:
            for _ in range(len(held.chunks) // 4):
                held.drop_oldest()

    def evicted(self, replica_id: str, num_tokens: int) -> None:
        """The engine has evicted so many tokens' worth of blocks: its oldest, as ours are."""
        held = self._held.get(replica_id)
        if held is None:
            return
        held.num_evicted_tokens += num_tokens
        while held.chunks and held.num_evicted_tokens >= next(iter(held.chunks.values())):
            held.num_evicted_tokens -= held.drop_oldest()
        if not held.chunks:
            held.num_evicted_tokens = 0

    def resync(self, replica_id: str, num_tokens: int) -> None:
        """This is how much the engine holds altogether; 0 after a restart."""
        held = self._held.get(replica_id)
        while held is not None and held.chunks and held.num_tokens > num_tokens:
            held.drop_oldest()

    def forget(self, replica_id: str) -> None:
        """The replica is gone, or has restarted with an empty cache."""
        self._held.pop(replica_id, None)

    def num_entries(self, replica_id: str) -> int:
        held = self._held.get(replica_id)
        return len(held.chunks) if held else 0

    def _of(self, replica_id: str) -> _Held:
        held = self._held.get(replica_id)
        if held is None:
            held = self._held[replica_id] = _Held()
            if len(self._held) > MAX_REPLICAS:
                self._held.popitem(last=False)
        return held
