"""What the scheduler sees of KV memory: how much of a prompt is there already, room for more tokens, and giving back.

It turns token counts into blocks, for every layer group, and keeps each request's block tables. A block table only
grows at its end, with two exceptions, both made here: entries that a window has moved past become NULL_BLOCK, and a
partly filled block shared by forked answers is replaced by a copy before one of them writes to it (copy-on-write).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tandem.core.request import Request
from tandem.core.types import BlockHash, BlockId
from tandem.engine.kvcache.block_pool import NULL_BLOCK, BlockPool, PoolListener
from tandem.engine.kvcache.hashing import BlockHasher
from tandem.engine.kvcache.layer_groups import LayerGroup, first_needed_block


class PrefixHit(NamedTuple):
    """The longest prefix on which all groups agree. Nothing is held yet: use it before the next allocation."""

    num_tokens: int
    tables: tuple[list[BlockId], ...]


class BlockCopy(NamedTuple):
    """Copy a block's content, in every layer of its group, before this step writes."""

    source: BlockId
    target: BlockId


class KVCacheManager:
    """Block tables of all running requests over one pool."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        groups: Sequence[LayerGroup],
        *,
        enable_prefix_caching: bool = True,
        hash_seed: str = "",
        listener: PoolListener | None = None,
    ) -> None:
        self.block_size = block_size
        self.groups = tuple(groups)
        self.pool = BlockPool(num_blocks, len(self.groups), listener)
        self._hasher = BlockHasher(block_size, hash_seed)
        self._caching = enable_prefix_caching
        self._copies: list[BlockCopy] = []

    # Finding what is there -------------------------------------------------------------------------------------------

    def get_computed_blocks(self, request: Request) -> PrefixHit:
        """The request's longest cached prefix, short of its last known token: that one is computed for its logits.

        Every group looks for the longest prefix not longer than what the others found, until all agree. A windowed
        group needs only the blocks its window still reaches.
        """
        none = PrefixHit(0, tuple([] for _ in self.groups))
        if not self.caching_applies(request):
            return none
        self._hasher.extend(request)
        length = min(len(request.block_hashes), (request.num_tokens - 1) // self.block_size)
        settled = 0
        group = 0
        tables: list[list[BlockId]] = [[] for _ in self.groups]
        while settled < len(self.groups) and length > 0:
            found = self._find_in_group(group, request.block_hashes, length)
            settled = settled + 1 if len(found) == length else 1
            length, tables[group] = len(found), found
            group = (group + 1) % len(self.groups)
        return PrefixHit(length * self.block_size, tuple(tables)) if length else none

    def caching_applies(self, request: Request) -> bool:
        """Prompt logprobs need every position computed, so such a request reads nothing from the cache."""
        return self._caching and request.sampling.prompt_logprobs is None

    def _find_in_group(self, group: int, hashes: list[BlockHash], limit: int) -> list[BlockId]:
        if self.groups[group].window is None:
            return self._find_from_start(group, hashes, limit)
        return self._find_window(group, hashes, limit)

    def _find_from_start(self, group: int, hashes: list[BlockHash], limit: int) -> list[BlockId]:
        found: list[BlockId] = []
        for block_hash in hashes[:limit]:
            block = self.pool.find(block_hash, group)
            if block is None:
                break
            found.append(block)
        return found

    def _find_window(self, group: int, hashes: list[BlockHash], limit: int) -> list[BlockId]:
        """Longest prefix, at most `limit` blocks, whose last window is all there; blocks before it are NULL_BLOCK."""
        window = self.groups[group].window
        found: list[BlockId] = []
        end = limit
        for index in range(limit - 1, -1, -1):
            block = self.pool.find(hashes[index], group)
            if block is None:
                found, end = [], index
                continue
            found.append(block)
            if index <= first_needed_block(window, end * self.block_size, self.block_size):
                return [NULL_BLOCK] * index + found[::-1]
        return found[::-1]

    # Taking and giving back ------------------------------------------------------------------------------------------

    def num_blocks_for(self, request: Request, num_tokens: int) -> int:
        """Blocks still missing for the request to have KV of `num_tokens` tokens at once, windows considered."""
        missing = 0
        for index, group in enumerate(self.groups):
            have = len(request.block_tables[index]) if request.block_tables else 0
            total = -(-num_tokens // self.block_size)
            start = max(have, first_needed_block(group.window, request.num_computed_tokens, self.block_size))
            missing += max(0, total - start)
        return missing

    def num_unheld_blocks(self, request: Request, hit: PrefixHit) -> int:
        """Blocks that seating a request with all its known tokens takes from the available ones.

        A hit block that nobody holds is one of them: it stops being available when it is shared.
        """
        per_group = -(-request.num_tokens // self.block_size)
        reused = sum(b == NULL_BLOCK or self.pool.references(b) > 0 for table in hit.tables for b in table)
        return per_group * len(self.groups) - reused

    def allocate_slots(self, request: Request, num_new_tokens: int, hit: PrefixHit | None = None) -> bool:
        """Slots for the next `num_new_tokens` tokens, after `hit` if the request has no KV yet. False: no room.

        On False nothing has changed.
        """
        if hit is not None:
            assert not request.block_tables, "a hit is for a request without blocks"
            self._share_hit(request, hit)
        if hit is None and self._has_slots(request, num_new_tokens):
            return True
        copied = self._shared_partial_blocks(request)
        total_blocks = -(-(request.num_computed_tokens + num_new_tokens) // self.block_size)
        missing = [total_blocks - len(table) for table in request.block_tables]
        if sum(max(0, m) for m in missing) + len(copied) > self.pool.num_available:
            if hit is not None:
                self.free(request)
            return False
        for group in copied:
            self._copy_on_write(request, group)
        for table, count in zip(request.block_tables, missing, strict=True):
            if count > 0:
                table.extend(self.pool.allocate(count))
        return True

    def _has_slots(self, request: Request, num_new_tokens: int) -> bool:
        """Whether the blocks that the request holds, and holds alone, have the slots: so it is for most tokens."""
        index, filled = divmod(request.num_computed_tokens, self.block_size)
        end = request.num_computed_tokens + num_new_tokens
        for table in request.block_tables:
            if end > len(table) * self.block_size or (filled and self.pool.references(table[index]) > 1):
                return False
        return True

    def _share_hit(self, request: Request, hit: PrefixHit) -> None:
        for table in hit.tables:
            for block in table:
                if block != NULL_BLOCK:
                    self.pool.share(block)
        request.block_tables = hit.tables
        request.num_computed_tokens = hit.num_tokens
        request.num_registered_blocks = hit.num_tokens // self.block_size

    def release_behind_windows(self, request: Request) -> None:
        """Give back the blocks that no later token attends to: this is where a window releases memory.

        Called after a step, when its blocks have been offered to the prefix cache.
        """
        for group, table in zip(self.groups, request.block_tables, strict=True):
            if group.window is None:
                continue
            index = min(first_needed_block(group.window, request.num_computed_tokens, self.block_size), len(table)) - 1
            while index >= 0 and table[index] != NULL_BLOCK:
                self.pool.release((table[index],))
                table[index] = NULL_BLOCK
                index -= 1

    def _shared_partial_blocks(self, request: Request) -> list[int]:
        """Groups whose partly filled last block others hold too."""
        index, filled = divmod(request.num_computed_tokens, self.block_size)
        if not filled:
            return []
        return [g for g, table in enumerate(request.block_tables) if self.pool.references(table[index]) > 1]

    def _copy_on_write(self, request: Request, group: int) -> None:
        index = request.num_computed_tokens // self.block_size
        table = request.block_tables[group]
        (target,) = self.pool.allocate(1)
        self._copies.append(BlockCopy(table[index], target))
        self.pool.release((table[index],))
        table[index] = target
        request.table_version += 1

    def take_copies(self) -> list[BlockCopy]:
        """The copies to make before this step runs, in order. The sources stay as they are until the step is done:
        a source is held by another answer, or was given back within this step and is written by nobody in it."""
        copies, self._copies = self._copies, []
        return copies

    def fork(self, parent: Request, child: Request) -> None:
        """Give `child` the same KV as `parent`, sharing every block."""
        for table in parent.block_tables:
            for block in table:
                if block != NULL_BLOCK:
                    self.pool.share(block)
        child.block_tables = tuple(list(table) for table in parent.block_tables)
        child.num_computed_tokens = parent.num_computed_tokens
        child.block_hashes = list(parent.block_hashes)
        child.num_registered_blocks = parent.num_registered_blocks

    def register_full_blocks(self, request: Request) -> None:
        """Offer the blocks that have become full to the prefix cache. Called after the step that computed them."""
        num_full = request.num_computed_tokens // self.block_size
        if not self._caching or num_full <= request.num_registered_blocks:
            return
        self._hasher.extend(request)
        hashes = request.block_hashes
        for index in range(request.num_registered_blocks, num_full):
            parent = hashes[index - 1] if index else None
            for group, table in enumerate(request.block_tables):
                if table[index] != NULL_BLOCK:
                    self.pool.register(table[index], hashes[index], group, parent)
        request.num_registered_blocks = num_full

    def free(self, request: Request) -> None:
        """Give back all blocks, tails first. The request can be scheduled again from nothing."""
        for table in request.block_tables:
            self.pool.release(reversed(table))
        request.block_tables = ()
        request.num_computed_tokens = 0
        request.num_registered_blocks = 0
        request.table_version += 1

    # Counting --------------------------------------------------------------------------------------------------------

    def num_empty_slots(self, request: Request) -> int:
        """Slots of the request's blocks that hold no token's KV yet."""
        return sum(len(table) * self.block_size - request.num_computed_tokens for table in request.block_tables)

    def num_held_blocks(self, request: Request) -> int:
        return sum(len(table) - table.count(NULL_BLOCK) for table in request.block_tables)


def blocks_for_length(groups: Sequence[LayerGroup], block_size: int, num_tokens: int, chunk: int = 1) -> int:
    """Blocks that one sequence needs at most. `chunk`: tokens computed in one step, which a windowed group must hold
    beside its window."""
    total = 0
    for group in groups:
        blocks = -(-num_tokens // block_size)
        if group.window is not None:
            # A window that starts inside a block touches one block more than its length says.
            blocks = min(blocks, -(-(group.window - 1 + chunk) // block_size) + 1)
        total += blocks
    return total
