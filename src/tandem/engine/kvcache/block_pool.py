"""All blocks of KV memory, and which of them can be given away.

Who owns a block: every block is in exactly one of three states, and their counts add up to the total after every call.

    free    holds nothing of use               in `_empty`, a stack: the block freed last is taken first, still warm
    cached  held by nobody, findable by hash   in `_evictable`, least recently released first
    held    reference count > 0                in some request's block table

A request takes references (`allocate`, `share`) and gives them back (`release`); the pool alone decides what a block
without references becomes. Knows nothing of requests, groups' windows or tensors.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Protocol

from tandem.core.types import BlockHash, BlockId

NULL_BLOCK = BlockId(-1)
"""Stands in a block table where a window has moved past: nothing lies there, nothing may be read."""


class PoolListener(Protocol):
    """Told of every change of what the prefix cache can find, in order."""

    def on_stored(self, block_hash: BlockHash, group: int, parent: BlockHash | None) -> None:
        """`parent`: the block before it in its prompt; None for the first."""
        ...

    def on_evicted(self, block_hash: BlockHash, group: int) -> None: ...


class BlockPool:
    """`num_blocks` interchangeable blocks, shared by all layer groups (each block serves one group at a time)."""

    def __init__(self, num_blocks: int, num_groups: int = 1, listener: PoolListener | None = None) -> None:
        assert num_blocks > 0
        self.num_blocks = num_blocks
        self._listener = listener
        self._references = [0] * num_blocks
        self._key_of: list[tuple[int, BlockHash] | None] = [None] * num_blocks
        self._block_of: list[dict[BlockHash, BlockId]] = [{} for _ in range(num_groups)]
        self._empty = [BlockId(i) for i in reversed(range(num_blocks))]
        self._evictable: OrderedDict[BlockId, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        return len(self._empty)

    @property
    def num_cached(self) -> int:
        return len(self._evictable)

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can still hand out: the free ones, then the cached ones."""
        return len(self._empty) + len(self._evictable)

    @property
    def num_held(self) -> int:
        return self.num_blocks - self.num_available

    def references(self, block: BlockId) -> int:
        return self._references[block]

    def allocate(self, count: int) -> list[BlockId]:
        """`count` blocks with one reference each. The caller has checked `num_available`."""
        assert count <= self.num_available, f"{count} blocks asked for, {self.num_available} available"
        blocks = [self._empty.pop() if self._empty else self._evict() for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def share(self, block: BlockId) -> None:
        """One more reference to a block that is held or cached."""
        if self._references[block] == 0:
            del self._evictable[block]
        self._references[block] += 1

    def release(self, blocks: Iterable[BlockId]) -> None:
        """Give back one reference to each; NULL_BLOCKs are passed over.

        Blocks are evicted in the order in which they are released here, so give a request's tail first: the head of a
        prompt is what other requests have in common with it.
        """
        for block in blocks:
            if block == NULL_BLOCK:
                continue
            self._references[block] -= 1
            assert self._references[block] >= 0, f"block {block} released too often"
            if self._references[block] == 0:
                if self._key_of[block] is None:
                    self._empty.append(block)
                else:
                    self._evictable[block] = None

    def register(self, block: BlockId, block_hash: BlockHash, group: int, parent: BlockHash | None = None) -> None:
        """Make a full block findable. If another already holds the same tokens, that one stays the findable one."""
        assert self._references[block] > 0, f"block {block} is held by nobody"
        if self._key_of[block] is None and block_hash not in self._block_of[group]:
            self._key_of[block] = (group, block_hash)
            self._block_of[group][block_hash] = block
            if self._listener:
                self._listener.on_stored(block_hash, group, parent)

    def find(self, block_hash: BlockHash, group: int) -> BlockId | None:
        """The block that holds these tokens for this group, without taking a reference."""
        return self._block_of[group].get(block_hash)

    def findable(self, group: int) -> list[BlockHash]:
        """Everything that the prefix cache can find for this group, in the order in which it was stored."""
        return list(self._block_of[group])

    def clear_cache(self) -> None:
        """Forget every block that nobody holds."""
        while self._evictable:
            self._empty.append(self._evict())

    def _evict(self) -> BlockId:
        block, _ = self._evictable.popitem(last=False)
        key = self._key_of[block]
        assert key is not None
        group, block_hash = key
        del self._block_of[group][block_hash]
        self._key_of[block] = None
        if self._listener:
            self._listener.on_evicted(block_hash, group)
        return block

    def check_integrity(self) -> None:
        """Assert that the three states are disjoint and complete. For tests and for debugging; costs O(blocks)."""
        empty, evictable = set(self._empty), set(self._evictable)
        held = {i for i, count in enumerate(self._references) if count > 0}
        assert len(empty) == len(self._empty), "a block is twice in the free list"
        assert not empty & evictable, "a free block is cached"
        assert not (empty | evictable) & held, "a held block is free or cached"
        assert len(empty) + len(evictable) + len(held) == self.num_blocks, "a block is lost"
        for block, key in enumerate(self._key_of):
            assert key is None or self._block_of[key[0]][key[1]] == block, f"block {block} is indexed wrongly"
            assert key is None or block not in empty, f"free block {block} still has a hash"
