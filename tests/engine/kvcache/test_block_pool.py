from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.core.types import BlockHash, BlockId
from tandem.engine.kvcache.block_pool import NULL_BLOCK, BlockPool


def name(value: int) -> BlockHash:
    return BlockHash(value.to_bytes(4, "big"))


class Events:
    def __init__(self) -> None:
        self.log: list[tuple[str, BlockHash, int]] = []

    def on_stored(self, block_hash: BlockHash, group: int, parent: BlockHash | None) -> None:
        self.log.append(("stored", block_hash, group))

    def on_evicted(self, block_hash: BlockHash, group: int) -> None:
        self.log.append(("evicted", block_hash, group))


def test_released_blocks_without_a_name_are_free_again() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(3)
    pool.release(blocks)
    assert (pool.num_free, pool.num_cached, pool.num_held) == (4, 0, 0)


def test_released_blocks_with_a_name_stay_findable_and_are_evicted_tail_first() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(3)
    for index, block in enumerate(blocks):
        pool.register(block, name(index), group=0)
    pool.release(reversed(blocks))
    assert (pool.num_free, pool.num_cached) == (0, 3)
    pool.allocate(1)
    assert pool.find(name(2), 0) is None, "the tail goes first"
    assert pool.find(name(0), 0) == blocks[0]


def test_a_shared_block_is_not_evicted() -> None:
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    pool.register(block, name(1), group=0)
    pool.release([block])
    pool.share(block)
    assert pool.num_available == 1
    pool.allocate(1)
    assert pool.find(name(1), 0) == block


def test_empty_blocks_are_taken_before_cached_ones() -> None:
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    pool.register(block, name(1), group=0)
    pool.release([block])
    assert pool.allocate(1) != [block]
    assert pool.find(name(1), 0) == block


def test_the_same_tokens_twice_are_found_once() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(2)
    pool.register(first, name(1), group=0)
    pool.register(second, name(1), group=0)
    pool.release([second])
    assert (pool.find(name(1), 0), pool.num_free) == (first, 1)


def test_groups_do_not_find_each_others_blocks() -> None:
    pool = BlockPool(2, num_groups=2)
    (block,) = pool.allocate(1)
    pool.register(block, name(1), group=1)
    assert pool.find(name(1), 0) is None
    assert pool.find(name(1), 1) == block


def test_listener_hears_of_every_change() -> None:
    events = Events()
    pool = BlockPool(1, listener=events)
    (block,) = pool.allocate(1)
    pool.register(block, name(7), group=0)
    pool.release([block])
    pool.clear_cache()
    assert events.log == [("stored", name(7), 0), ("evicted", name(7), 0)]


def test_null_blocks_are_passed_over_and_releasing_too_often_is_a_bug() -> None:
    pool = BlockPool(2)
    pool.release([NULL_BLOCK])
    (block,) = pool.allocate(1)
    pool.release([block])
    with pytest.raises(AssertionError, match="too often"):
        pool.release([block])


@given(
    st.lists(st.tuples(st.sampled_from(["allocate", "release", "share", "register"]), st.integers(0, 99)), max_size=80)
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_every_block_is_in_exactly_one_state(actions: list[tuple[str, int]]) -> None:
    pool = BlockPool(6)
    held: list[BlockId] = []
    for action, value in actions:
        if action == "allocate" and pool.num_available:
            held += pool.allocate(1 + value % pool.num_available)
        elif action == "release" and held:
            pool.release([held.pop(value % len(held))])
        elif action == "share" and (block := pool.find(name(value % 8), 0)) is not None:
            pool.share(block)
            held.append(block)
        elif action == "register" and held:
            pool.register(held[value % len(held)], name(value % 8), 0)
        pool.check_integrity()
        assert pool.num_free + pool.num_cached + pool.num_held == 6
        assert pool.num_held == len(set(held))
