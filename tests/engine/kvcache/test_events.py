"""A reader of the events always knows exactly what the prefix cache can find."""

from __future__ import annotations

import pytest

from tandem.engine.kvcache.layer_groups import LayerGroup
from tandem.protocol.state import BlockEvicted, BlockStored, CacheResync, KVEvent, KVEventBatch
from tests.engine.fake_runner import FULL, Harness
from tests.engine.test_scheduler import new, prompt


class Reader:
    """What a gateway would do with events."""

    def __init__(self) -> None:
        self.known: set[str] = set()
        self.sequence = 0

    def take(self, events: list[KVEvent]) -> None:
        assert KVEventBatch(events=events).follows(self.sequence)
        for event in events:
            if isinstance(event, CacheResync):
                self.known = set(event.block_hashes)
            elif isinstance(event, BlockStored):
                assert event.parent_hash is None or event.parent_hash in self.known, "a block without what is before it"
                assert not self.known & set(event.block_hashes), "stored twice"
                self.known |= set(event.block_hashes)
            else:
                assert self.known >= set(event.block_hashes), "evicted, and never stored"
                self.known -= set(event.block_hashes)
            self.sequence = event.sequence


def truth(harness: Harness, group: int = 0) -> set[str]:
    return {block_hash.hex() for block_hash in harness.kv.pool.findable(group)}


def crowd(harness: Harness, reader: Reader | None = None) -> None:
    """More requests than the pool can remember, some alike, so that blocks are stored, shared and evicted."""
    for number in range(12):
        harness.add(new(str(number), prompt(20, number // 3 * 100), 8, arrival_s=float(number)))
    while harness.core.has_work:
        harness.step()
        if reader:
            reader.take(harness.core.take_cache_events())
            assert reader.known == truth(harness)


def test_a_reader_knows_the_cache_after_every_step() -> None:
    harness, reader = Harness(num_blocks=20), Reader()
    harness.core.watch_cache(True)
    reader.take(harness.core.take_cache_events())
    crowd(harness, reader)
    assert reader.sequence == harness.core.stats().kv_events_sequence > 10


def test_nothing_is_recorded_while_nobody_listens() -> None:
    harness = Harness(num_blocks=20)
    crowd(harness)
    assert harness.core.take_cache_events() == []
    assert harness.core.stats().kv_events_sequence == 0


def test_a_late_reader_begins_with_all_there_is_and_so_does_one_that_lost_track() -> None:
    harness, reader = Harness(num_blocks=20), Reader()
    crowd(harness)
    for _ in range(2):
        harness.core.watch_cache(True)
        (resync,) = harness.core.take_cache_events()
        reader.take([resync])
        assert reader.known == truth(harness)
        harness.add(new(f"more {reader.sequence}", prompt(20, 700 + reader.sequence), 8))
        harness.run()
    lost = harness.core.take_cache_events()
    assert not KVEventBatch(events=lost[1:]).follows(reader.sequence), "a gap shows"


def test_blocks_of_one_prompt_that_are_stored_together_are_one_event() -> None:
    harness = Harness(num_blocks=20)
    harness.core.watch_cache(True)
    harness.core.take_cache_events()
    harness.add(new("a", prompt(16), 1))
    harness.step()
    (event,) = harness.core.take_cache_events()
    assert isinstance(event, BlockStored)
    assert (len(event.block_hashes), event.parent_hash, event.block_size) == (4, None, 4)


def test_nothing_more_comes_when_the_last_listener_has_gone() -> None:
    harness = Harness(num_blocks=20)
    harness.core.watch_cache(True)
    harness.core.take_cache_events()
    harness.core.watch_cache(False)
    crowd(harness)
    assert harness.core.take_cache_events() == []


@pytest.mark.parametrize("groups", [FULL, (LayerGroup((0,), 8), LayerGroup((1,), None))])
def test_the_group_with_the_whole_context_speaks_for_all(groups: tuple[LayerGroup, ...]) -> None:
    harness, reader = Harness(num_blocks=40, groups=groups), Reader()
    harness.core.watch_cache(True)
    crowd(harness)
    reader.take(harness.core.take_cache_events())
    assert reader.known == truth(harness, group=len(groups) - 1)


def test_events_are_of_all_kinds() -> None:
    """Guards the tests above: they would prove little on a cache that never evicts."""
    harness = Harness(num_blocks=20)
    harness.core.watch_cache(True)
    harness.core.take_cache_events()
    crowd(harness)
    assert {type(event) for event in harness.core.take_cache_events()} == {BlockStored, BlockEvicted}
