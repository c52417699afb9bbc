"""`GET /tandem/state`: what an engine tells a gateway about its load, and the events of its prefix cache.

A gateway that sees a gap in `sequence`, or connects anew, asks for a `CacheResync` and starts again from it.
Hashes are SHA-256 in hexadecimal, made with the deployment's shared seed, so they compare across replicas.
"""

from __future__ import annotations

import msgspec

from tandem.core.types import ServiceClass


class BlockCounts(msgspec.Struct, kw_only=True):
    """Every block of the pool is in exactly one of the three."""

    free: int = 0
    """Holding nothing."""
    cached: int = 0
    """Held by no request, but still of use to a prompt that begins alike; may be evicted."""
    held: int = 0
    """Held by requests."""


class SlotCounts(msgspec.Struct, kw_only=True):
    """Token positions in held blocks. `empty / allocated` is the fragmentation."""

    allocated: int = 0
    empty: int = 0


class StepSample(msgspec.Struct, array_like=True):
    """One step: how long it took and its shape."""

    duration_s: float
    num_tokens: int
    num_seqs: int


class EngineCounters(msgspec.Struct, kw_only=True):
    """Since the engine started; they never fall."""

    steps: int = 0
    busy_s: float = 0.0
    preemptions: int = 0
    recomputed_tokens: int = 0
    wasted_tokens: int = 0
    prefix_queries: int = 0
    """Prompt tokens looked up in the prefix cache, each request's once."""
    prefix_hits: int = 0


class EngineState(msgspec.Struct, kw_only=True):
    """A snapshot. It holds no prompt, no output and no token of anybody."""

    version: str
    """Tandem's."""
    model: str
    runner: str | None = None
    """None, like the sizes below, until the model is loaded."""
    is_ready: bool
    """Takes requests: loaded, alive, not draining."""
    is_draining: bool = False
    failure: str | None = None
    heartbeat_age_s: float | None = None
    block_size: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    running: dict[ServiceClass, int] = {}
    waiting: dict[ServiceClass, int] = {}
    """In the scheduler, plus those the front has accepted and not handed over yet."""
    queued_prompt_tokens: int = 0
    """Prompt tokens still to compute; those found in the prefix cache not counted."""
    blocks: BlockCounts = msgspec.field(default_factory=BlockCounts)
    slots: SlotCounts = msgspec.field(default_factory=SlotCounts)
    counters: EngineCounters = msgspec.field(default_factory=EngineCounters)
    recent_steps: list[StepSample] = []
    """Oldest first; enough to fit how long a step takes by its shape."""
    kv_events_sequence: int = 0
    """Of the newest cache event."""


class BlockStored(msgspec.Struct, tag="stored", kw_only=True):
    """Full blocks became findable."""

    sequence: int
    block_hashes: list[str]
    parent_hash: str | None
    """The block before the first of them; None at a prompt's start."""
    block_size: int


class BlockEvicted(msgspec.Struct, tag="evicted", kw_only=True):
    """Blocks are gone from the prefix cache."""

    sequence: int
    block_hashes: list[str]


class CacheResync(msgspec.Struct, tag="resync", kw_only=True):
    """Forget what you knew: this is all there is, as of `sequence`."""

    sequence: int
    block_hashes: list[str]


KVEvent = BlockStored | BlockEvicted | CacheResync


class KVEventBatch(msgspec.Struct, kw_only=True):
    """Events in order, without gaps inside the batch."""

    events: list[KVEvent]

    def follows(self, sequence: int) -> bool:
        """Whether a reader that stands at `sequence` has missed nothing."""
        if not self.events:
            return True
        first = self.events[0]
        return isinstance(first, CacheResync) or first.sequence == sequence + 1
