"""Follows what engines say of their prefix caches, to keep the gateway's own index of prefixes near the truth.

The engine names blocks by tokens and the index names chunks by bytes, so single blocks can't be matched; what can be
used is *how much* was evicted and how much there is. Both sides forget the least recently used first, so dropping as
many tokens from the index as the engine has evicted drops the same ones, near enough.
"""

from __future__ import annotations

from tandem.gateway.routing.prefix_index import PrefixIndex
from tandem.protocol.state import BlockEvicted, BlockStored, CacheResync, KVEventBatch


class CacheFollower:
    """One for each gateway. Whoever reads `GET /tandem/kv-events?after=N` from an engine hands the answers in."""

    def __init__(self, index: PrefixIndex) -> None:
        self._index = index
        self._position: dict[str, int] = {}

    def position(self, replica_id: str) -> int:
        """The N to ask after next; 0 to begin with a resync."""
        return self._position.get(replica_id, 0)

    def take(self, replica_id: str, batch: KVEventBatch, block_size: int) -> bool:
        """False: events are missing in between, and the next question begins anew. `block_size`: of the engine."""
        if not batch.follows(self.position(replica_id)):
            self._position.pop(replica_id, None)
            return False
        for event in batch.events:
            if isinstance(event, CacheResync):
                self._index.resync(replica_id, len(event.block_hashes) * block_size)
            elif isinstance(event, BlockEvicted):
                self._index.evicted(replica_id, len(event.block_hashes) * block_size)
            else:
                assert isinstance(event, BlockStored)  # what was sent there is in the index already
            self._position[replica_id] = event.sequence
        return True

    def forget(self, replica_id: str) -> None:
        self._position.pop(replica_id, None)
