"""What a gateway is told of the prefix cache: blocks stored, blocks evicted, numbered so that a gap is noticed.

Off until somebody listens; then it costs an append for each block. Events are collected during a step and taken after
it, so what lies here is bounded by the blocks that one step can touch. Of several layer groups one speaks for all: the
one that keeps the whole context, since its blocks last longest and a prefix hit needs them.
"""

from __future__ import annotations

from collections.abc import Sequence

from tandem.core.types import BlockHash
from tandem.engine.kvcache.block_pool import BlockPool
from tandem.engine.kvcache.layer_groups import LayerGroup
from tandem.protocol.state import BlockEvicted, BlockStored, CacheResync, KVEvent


class CacheEventLog:
    """Implements `block_pool.PoolListener`."""

    def __init__(self, groups: Sequence[LayerGroup], block_size: int) -> None:
        self._group = next((i for i, group in enumerate(groups) if group.window is None), 0)
        self._block_size = block_size
        self._is_on = False
        self._wants_resync = False
        self._events: list[KVEvent] = []
        self._tail: BlockHash | None = None
        """The last stored block, while its event may still grow."""
        self.sequence = 0
        """Of the newest event."""

    def watch(self, is_on: bool) -> None:
        """Begin with everything there is, or end. Called again while on: begin anew, for somebody has lost track."""
        self._is_on = self._wants_resync = is_on
        self._clear()

    def on_stored(self, block_hash: BlockHash, group: int, parent: BlockHash | None) -> None:
        if not self._is_on or self._wants_resync or group != self._group:
            return
        last = self._events[-1] if self._events else None
        if isinstance(last, BlockStored) and parent is not None and parent == self._tail:
            last.block_hashes.append(block_hash.hex())
        else:
            self.sequence += 1
            parent_hash = None if parent is None else parent.hex()
            self._events.append(
                BlockStored(
                    sequence=self.sequence,
                    block_hashes=[block_hash.hex()],
                    parent_hash=parent_hash,
                    block_size=self._block_size,
                )
            )
        self._tail = block_hash

    def on_evicted(self, block_hash: BlockHash, group: int) -> None:
        if not self._is_on or self._wants_resync or group != self._group:
            return
        last = self._events[-1] if self._events else None
        if isinstance(last, BlockEvicted):
            last.block_hashes.append(block_hash.hex())
        else:
            self.sequence += 1
            self._events.append(BlockEvicted(sequence=self.sequence, block_hashes=[block_hash.hex()]))

    def take(self, pool: BlockPool) -> list[KVEvent]:
        """What happened since the last call, in order; it is the caller's now."""
        if self._wants_resync:
            self._wants_resync = False
            self.sequence += 1
            hashes = [block_hash.hex() for block_hash in pool.findable(self._group)]
            return [CacheResync(sequence=self.sequence, block_hashes=hashes)]
        events = self._events
        if events:
            self._clear()
        return events

    def _clear(self) -> None:
        self._events, self._tail = [], None
