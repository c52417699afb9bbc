"""Seats for lines: bounded, growing while nothing is refused, shrinking when something is."""

from __future__ import annotations

import asyncio

from tandem.core.clock import ManualClock
from tandem.gateway.batches.room import START, Room
from tests.gateway.rows import until


class Sitting:
    """Lines that sit until told to get up."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.order: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._leave: dict[str, asyncio.Event] = {}

    def come(self, name: str, *, again: bool = False) -> None:
        self._leave[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._sit(name, again))

    async def leave(self, name: str) -> None:
        self._leave[name].set()
        await self.tasks[name]

    async def _sit(self, name: str, again: bool) -> None:
        async with self.room.seat(again=again):
            self.order.append(name)
            await self._leave[name].wait()

    async def clear(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_no_more_sit_than_there_are_seats_and_they_come_in_order() -> None:
    sitting = Sitting(Room(2))
    for name in "abcd":
        sitting.come(name)
        await turn()
    sitting.come("again", again=True)
    await turn()
    assert sitting.order == ["a", "b"]
    await sitting.leave("a")
    await turn()
    assert sitting.order == ["a", "b", "again"]
    await sitting.leave("b")
    await turn()
    assert sitting.order[3:] == ["c"]
    await sitting.clear()
    assert sitting.room.in_flight == 0


async def test_who_stops_waiting_leaves_no_hole() -> None:
    sitting = Sitting(Room(1))
    for name in "abc":
        sitting.come(name)
        await turn()
    sitting.tasks["b"].cancel()
    await sitting.leave("a")
    await turn()
    assert sitting.order == ["a", "c"]
    await sitting.clear()
    assert sitting.room.in_flight == 0


async def test_it_doubles_until_something_is_full_then_creeps() -> None:
    clock = ManualClock()
    room = Room(100, clock)
    assert room.size == START
    room.in_flight = START
    for _ in range(8):
        room.in_flight = room.size
        room.answered()
    assert room.size == 2 * START
    room.full(0.0)
    room.full(0.0)  # Of the same moment: counts once.
    assert room.size == START
    for _ in range(START):
        room.in_flight = room.size
        room.answered()
    assert room.size in (START, START + 1)
    for _ in range(20):
        clock.advance(2.0)
        room.full(0.0)
    assert room.size == 1


async def test_a_room_that_is_not_used_does_not_grow() -> None:
    room = Room(100)
    room.in_flight = 1
    for _ in range(100):
        room.answered()
    assert room.size == START


async def test_it_never_grows_past_its_bound() -> None:
    room = Room(3)
    for _ in range(50):
        room.in_flight = room.size
        room.answered()
    assert room.size == 3


async def test_after_a_refusal_nobody_sits_before_the_time_named() -> None:
    sitting = Sitting(Room(4))
    sitting.room.full(0.05)
    sitting.come("a")
    await turn()
    assert sitting.order == []
    await until(lambda: sitting.order == ["a"])
    await sitting.clear()
