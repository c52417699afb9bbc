"""The index knows what it was told, forgets in the engine's order, and stays within its bound."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.gateway.routing.kv_events import CacheFollower
from tandem.gateway.routing.prefix_index import PrefixIndex
from tandem.protocol.state import BlockEvicted, BlockStored, CacheResync, KVEvent, KVEventBatch


def chain(*parts: str) -> tuple[bytes, ...]:
    """Names of "a", "a/b", "a/b/c"."""
    return tuple("/".join(parts[: i + 1]).encode() for i in range(len(parts)))


def test_the_longest_shared_beginning_counts() -> None:
    index = PrefixIndex()
    index.add("r", chain("a", "b", "c", "d"), 400)
    assert index.num_hits("r", chain("a", "b", "c", "d", "e")) == 4
    assert index.num_hits("r", chain("a", "b", "x")) == 2
    assert index.num_hits("r", chain("x", "b")) == 0
    assert index.num_hits("other", chain("a")) == 0
    assert index.num_hits("r", ()) == 0


def test_tails_go_before_heads_and_the_least_recently_used_first() -> None:
    index = PrefixIndex(max_entries=6)
    index.add("r", chain("a", "b", "c"), 300)
    index.add("r", chain("x", "y", "z"), 300)
    index.add("r", chain("a", "q"), 200)
    assert index.num_entries("r") == 6
    assert index.num_hits("r", chain("a", "b", "c")) == 2, "its tail had to go"
    assert index.num_hits("r", chain("x", "y", "z")) == 3
    index.add("r", chain("k"), 100)
    assert index.num_hits("r", chain("a", "b")) == 1
    assert index.num_hits("r", chain("a", "q")) == 2, "used last"


def test_a_prompt_longer_than_the_bound_is_known_by_its_beginning() -> None:
    index = PrefixIndex(max_entries=4)
    long = chain(*map(str, range(100)))
    index.add("r", long, 10_000)
    assert index.num_hits("r", long) == 4
    PrefixIndex(max_entries=0).add("r", long, 10_000)


@given(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=6), max_size=60), st.integers(1, 20))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_whoever_holds_a_chunk_holds_all_before_it(prompts: list[list[str]], bound: int) -> None:
    """The invariant that lets a search by halves find what a walk would."""
    index = PrefixIndex(max_entries=bound)
    for prompt in prompts:
        index.add("r", chain(*prompt), 100 * len(prompt))
        assert index.num_entries("r") <= bound
        held = index._held["r"].chunks
        for other in prompts:
            names = chain(*other)
            walked = next((i for i, name in enumerate(names) if name not in held), len(names))
            assert index.num_hits("r", names) == walked
            assert all(name not in held for name in names[walked:])


def test_wrong_predictions_shrink_it_and_a_restart_empties_it() -> None:
    index = PrefixIndex()
    index.add("r", chain(*map(str, range(100))), 1000)
    index.correct("r")
    assert index.num_entries("r") == 75
    index.correct("nobody")
    index.forget("r")
    assert index.num_entries("r") == 0


class LruEngine:
    """An engine's cache in blocks, told of by events; its blocks are of 16 tokens and the gateway's chunks of 64."""

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self._blocks: dict[bytes, None] = {}
        self._sequence = 0
        self.events: list[KVEvent] = []

    def compute(self, hashes: tuple[bytes, ...]) -> None:
        for name in reversed([b"%b.%d" % (h, part) for h in hashes for part in range(4)]):
            is_new = name not in self._blocks
            self._blocks.pop(name, None)
            self._blocks[name] = None
            if is_new:
                self._emit(BlockStored(sequence=self._next(), block_hashes=["s"], parent_hash=None, block_size=16))
        while len(self._blocks) > self._num_blocks:
            del self._blocks[next(iter(self._blocks))]
            self._emit(BlockEvicted(sequence=self._next(), block_hashes=["e"]))

    def num_hits(self, hashes: tuple[bytes, ...]) -> int:
        """Whole chunks."""
        held = [all(b"%b.%d" % (h, part) in self._blocks for part in range(4)) for h in hashes]
        return held.index(False) if False in held else len(held)

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence

    def _emit(self, event: KVEvent) -> None:
        self.events.append(event)


def test_events_keep_the_index_near_the_truth() -> None:
    """An engine with a fifth of the memory that the index could describe: without events it promises far too much."""
    rng, engine = random.Random(5), LruEngine(num_blocks=200)
    told, untold = PrefixIndex(1000), PrefixIndex(1000)
    follower = CacheFollower(told)
    assert follower.take("r", KVEventBatch(events=[CacheResync(sequence=0, block_hashes=[])]), 16)
    promised = {"told": 0, "untold": 0, "true": 0, "shared": 0}
    for number in range(600):
        prompt = chain(f"tenant {rng.randrange(30)}", "rules", str(number % 40), str(number))
        truth = engine.num_hits(prompt)
        promised["true"] += truth
        promised["told"] += told.num_hits("r", prompt)
        promised["untold"] += untold.num_hits("r", prompt)
        engine.compute(prompt)
        told.add("r", prompt, 64 * len(prompt))
        untold.add("r", prompt, 64 * len(prompt))
        assert follower.take("r", KVEventBatch(events=engine.events), 16)
        engine.events = []
    assert promised["true"] > 100, "there is something to find"
    assert promised["untold"] > 1.3 * promised["true"]
    assert abs(promised["told"] - promised["true"]) < 0.1 * promised["true"]


def test_a_gap_is_noticed_and_the_next_question_begins_anew() -> None:
    index = PrefixIndex()
    index.add("r", chain("a", "b", "c"), 192)
    follower = CacheFollower(index)
    assert follower.take("r", KVEventBatch(events=[CacheResync(sequence=4, block_hashes=["h"] * 12)]), 16)
    assert (follower.position("r"), index.num_entries("r")) == (4, 3)
    assert follower.take("r", KVEventBatch(events=[]), 16)
    assert not follower.take("r", KVEventBatch(events=[BlockEvicted(sequence=6, block_hashes=["h"])]), 16)
    assert follower.position("r") == 0
    assert follower.take("r", KVEventBatch(events=[CacheResync(sequence=9, block_hashes=["h"] * 4)]), 16)
    assert index.num_hits("r", chain("a", "b", "c")) == 1, "64 tokens are all it has now"
    follower.take("r", KVEventBatch(events=[CacheResync(sequence=1, block_hashes=[])]), 16)
    assert index.num_entries("r") == 0, "it has restarted"
