"""A line of waiters: fair between keys by what they take, and never holding what has left."""

from __future__ import annotations

import asyncio
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.gateway.admission.waiting import Line, Waiter
from tandem.gateway.context import Caller
from tests.gateway.routing.fleet import make_context


def waiter(serial: int, key: str, tokens: int = 100, weight: float = 1.0) -> Waiter:
    context = make_context(tokens, 0, caller=Caller(key_id=key, weight=weight))
    loop = asyncio.new_event_loop()
    wake: asyncio.Future[None] = loop.create_future()
    loop.close()
    return Waiter(context, serial, "all_full", 0.0, 1.0, wake)


def serve(line: Line) -> Waiter:
    head = line.head()
    assert head is not None
    line.remove(head, was_served=True)
    return head


def test_one_key_is_a_plain_queue() -> None:
    line = Line()
    for serial in range(5):
        line.add(waiter(serial, "k"))
    assert [serve(line).serial for _ in range(5)] == [0, 1, 2, 3, 4]
    assert line.head() is None


def test_tokens_by_weight_are_shared_evenly() -> None:
    line, rng = Line(), random.Random(0)
    sizes = {"a": (100, 1.0), "b": (400, 1.0), "c": (100, 3.0)}
    for serial in range(1500):
        key = ("a", "b", "c")[serial % 3]
        tokens, weight = sizes[key]
        line.add(waiter(serial, key, rng.randint(tokens // 2, tokens * 3 // 2), weight))
    taken = dict.fromkeys(sizes, 0)
    for _ in range(400):
        one = serve(line)
        taken[one.context.caller.key_id] += one.context.total_tokens
    assert 0.9 < taken["a"] / taken["b"] < 1.1
    assert 2.7 < taken["c"] / taken["a"] < 3.3


def test_a_key_saves_up_no_turns_by_staying_away() -> None:
    line = Line()
    for serial in range(40):
        line.add(waiter(serial, "busy"))
    for _ in range(20):
        serve(line)
    for serial in range(40, 60):
        line.add(waiter(serial, "late"))
    keys = [serve(line).context.caller.key_id for _ in range(20)]
    assert 9 <= keys.count("late") <= 11


def test_a_key_that_leaves_and_comes_back_does_not_jump_the_line() -> None:
    line = Line()
    line.add(waiter(0, "a", tokens=10_000))
    for serial in range(1, 4):
        line.add(waiter(serial, "b"))
    assert serve(line).serial == 0
    line.add(waiter(9, "a"))
    assert [serve(line).serial for _ in range(3)] == [1, 2, 3], "it has had its 10,000 tokens"


@given(st.lists(st.tuples(st.sampled_from("asc"), st.integers(0, 4), st.integers(0, 50)), max_size=120))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_whoever_is_in_the_line_is_found_and_whoever_left_is_not(actions: list[tuple[str, int, int]]) -> None:
    line = Line()
    present: list[Waiter] = []
    for serial, (action, key, which) in enumerate(actions):
        if action == "a":
            present.append(waiter(serial, str(key), 10 * which + 1))
            line.add(present[-1])
        elif action == "s" and present:
            present.remove(serve(line))
        elif action == "c" and present:
            gone = present.pop(which % len(present))
            line.remove(gone)
        assert len(line) == len(present)
        assert {id(w) for w in line.all()} == {id(w) for w in present}
        head = line.head()
        assert (head is None) == (not present)
        assert head is None or head in present
        if head is not None:
            key_of = head.context.caller.key_id
            assert head.serial == min(w.serial for w in present if w.context.caller.key_id == key_of)
    assert len(line._heap) <= 2 * len(present) + 66
