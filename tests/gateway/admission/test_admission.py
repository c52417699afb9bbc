"""The waiting rooms: who goes first, who is turned away and how, and that no wake-up is lost or wasted."""

from __future__ import annotations

import asyncio
import gc
import math
import random
import weakref
from collections.abc import Callable
from dataclasses import fields
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from tandem.config.gateway_admission import AdmissionConfig, QueueLimits, WaitingRoom
from tandem.core.clock import ManualClock
from tandem.core.errors import Overloaded, TandemError, Unavailable
from tandem.core.types import ServiceClass
from tandem.gateway.admission.admission import Admission
from tandem.gateway.admission.metrics import AdmissionMetrics
from tandem.gateway.context import Caller, RequestContext
from tandem.gateway.routing.base import Decision
from tests.gateway.routing.fleet import make_context, make_replicas


class Timers:
    """`call_later` on a clock that the test moves."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._armed: list[_Timer] = []

    def __call__(self, delay_s: float, callback: Callable[[], None]) -> _Timer:
        timer = _Timer(self._clock.now() + delay_s, callback)
        self._armed.append(timer)
        return timer

    def advance(self, seconds: float) -> None:
        self._clock.advance(seconds)
        due = [timer for timer in self._armed if timer.at_s <= self._clock.now()]
        self._armed = [timer for timer in self._armed if timer not in due]
        for timer in due:
            if timer.callback is not None:
                timer.callback()


class _Timer:
    def __init__(self, at_s: float, callback: Callable[[], None]) -> None:
        self.at_s = at_s
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Watched(RequestContext):
    """One that can be watched for its end."""

    __slots__ = ("__weakref__",)


class House:
    """An admission over places that the test gives out. `served`: names in the order in which they got one."""

    def __init__(self, places: int = 0, *, is_up: bool = True, config: AdmissionConfig | None = None) -> None:
        self.clock = ManualClock()
        self.timers = Timers(self.clock)
        self.is_up = is_up
        self.places: dict[str, int] = {"m": places}
        self.served: list[str] = []
        self.num_tries = 0
        self.admission = Admission(
            config or AdmissionConfig(), lambda context: self.is_up, clock=self.clock, call_later=self.timers
        )
        self._replica = make_replicas(1)[0]

    def choose(self, context: RequestContext) -> Decision | None:
        self.num_tries += 1
        if self.places.get(context.model, 0) <= 0 or self._replica.id in context.excluded:
            return None
        return Decision(self._replica, "there")

    async def request(self, name: str, service_class: str = "interactive", **more: Any) -> str:
        caller = Caller(key_id=more.pop("key", "k"), weight=more.pop("weight", 1.0))
        excluded = more.pop("excluded", set())
        context = make_context(
            more.pop("prompt_tokens", 50),
            more.pop("output_tokens", 50),
            cast("ServiceClass", service_class),
            caller=caller,
            name=name,
            **more,
        )
        context.excluded |= excluded
        await self.admission.enter(context, lambda: self.choose(context))
        self.places[context.model] -= 1  # before the first await, as the contract says
        self.served.append(name)
        return name

    def start(self, name: str, service_class: str = "interactive", **more: Any) -> asyncio.Task[str]:
        return asyncio.create_task(self.request(name, service_class, **more))

    async def free(self, count: int = 1, model: str = "m") -> None:
        self.places[model] = self.places.get(model, 0) + count
        self.admission.notify()
        await settle()


async def settle(rounds: int = 60) -> None:
    """Let everything run that can."""
    for _ in range(rounds):
        await asyncio.sleep(0)


def limits(**values: Any) -> AdmissionConfig:
    room = WaitingRoom(interactive=QueueLimits(**values), batch=QueueLimits(**values))
    return AdmissionConfig(none_up=room, all_full=room)


async def test_who_finds_a_place_does_not_wait() -> None:
    house = House(places=1)
    assert await house.request("a") == "a"
    assert house.num_tries == 1
    assert house.admission.num_waiting() == 0


async def test_first_come_first_served_one_for_each_place() -> None:
    house = House()
    tasks = [house.start(name) for name in "abcd"]
    await settle()
    assert house.admission.num_waiting("m") == 4
    for count in (1, 2, 3, 4):
        await house.free()
        assert house.served == list("abcd")[:count]
    await asyncio.gather(*tasks)
    assert house.admission.num_waiting() == 0


async def test_interactive_goes_before_batch_whenever_it_came() -> None:
    house = House()
    tasks = [house.start("b1", "batch"), house.start("b2", "batch")]
    await settle()
    tasks += [house.start("i1"), house.start("i2")]
    await settle()
    await house.free(3)
    assert house.served == ["i1", "i2", "b1"]
    await house.free()
    await asyncio.gather(*tasks)


async def test_batch_that_comes_does_not_pass_interactive_that_waits() -> None:
    house = House()
    first = house.start("i1")
    await settle()
    house.places["m"] = 1
    house.admission.notify()
    late = house.start("b1", "batch")  # the place is free, and already promised
    await settle()
    assert house.served == ["i1"]
    await house.free()
    await asyncio.gather(first, late)


async def test_an_interactive_newcomer_passes_batch_that_waits() -> None:
    house = House()
    waiting = house.start("b1", "batch")
    await settle()
    house.places["m"] = 1
    house.admission.notify()
    newcomer = house.start("i1")
    await settle()
    assert len(house.served) == 1
    await house.free()
    await asyncio.gather(waiting, newcomer)


async def test_models_do_not_hold_each_other_up() -> None:
    house = House()
    tasks = [house.start("m", model="m"), house.start("other", model="other")]
    await settle()
    assert house.admission.waiting_models() == {"m": 1, "other": 1}
    await house.free(model="other")
    assert house.served == ["other"]
    await house.free()
    await asyncio.gather(*tasks)


async def test_keys_take_turns_by_weight() -> None:
    house = House()
    tasks = [house.start(f"greedy{n}", key="greedy") for n in range(20)]
    tasks += [house.start(f"small{n}", key="small") for n in range(4)]
    tasks += [house.start(f"double{n}", key="double", weight=2.0) for n in range(8)]
    await settle()
    for _ in range(12):
        await house.free()
    counts = {name: sum(s.startswith(name) for s in house.served) for name in ("greedy", "small", "double")}
    assert counts == {"greedy": 3, "small": 3, "double": 6}
    await house.free(100)
    await asyncio.gather(*tasks)


async def test_long_requests_count_for_more_than_short_ones() -> None:
    house = House()
    tasks = [house.start(f"long{n}", key="long", prompt_tokens=950) for n in range(10)]
    tasks += [house.start(f"short{n}", key="short", prompt_tokens=50) for n in range(20)]
    await settle()
    await house.free(11)
    assert sum(name.startswith("long") for name in house.served) in (1, 2)
    await house.free(100)
    await asyncio.gather(*tasks)


async def test_one_free_place_wakes_two_and_not_five_thousand() -> None:
    house = House(config=limits(max_requests=10_000, max_tokens=10**9))
    tasks = [house.start(str(n), key=str(n % 50)) for n in range(5000)]
    await settle()
    house.num_tries = 0
    await house.free()
    assert (len(house.served), house.num_tries) == (1, 2)
    for _ in range(20):
        await house.free()
    assert house.num_tries == 42
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert house.admission.num_waiting() == 0


async def test_a_waiter_that_is_cancelled_as_it_is_woken_hands_on() -> None:
    house = House()
    first, second = house.start("a"), house.start("b")
    await settle()
    house.places["m"] = 1
    house.admission.notify()  # "a" is woken, and has not run yet
    first.cancel()
    await settle()
    assert house.served == ["b"]
    await second


async def test_a_waiter_that_was_cancelled_just_before_is_passed_over() -> None:
    house = House()
    first, second = house.start("a"), house.start("b")
    await settle()
    first.cancel()
    house.places["m"] = 1
    house.admission.notify()
    await settle()
    assert house.served == ["b"]
    await second


async def test_a_choice_that_fails_hands_on_and_reaches_its_request() -> None:
    house = House()
    context = make_context(name="broken")
    outcome: list[Decision | None] = [None]

    def choose() -> Decision | None:
        if house.places["m"]:
            raise RuntimeError("a bug in a policy")
        return outcome[0]

    broken = asyncio.create_task(house.admission.enter(context, choose))
    await settle()
    fine = house.start("b")
    await settle()
    await house.free()
    with pytest.raises(RuntimeError):
        await broken
    assert await fine == "b"


async def test_a_choosy_request_does_not_block_those_behind_it() -> None:
    """A retry that may not go back to the only replica with room."""
    house = House()
    choosy = house.start("choosy", excluded={"p/00"})
    await settle()
    plain = [house.start(name) for name in "ab"]
    await settle()
    await house.free(2)
    assert house.served == ["a", "b"]
    choosy.cancel()
    await asyncio.gather(choosy, *plain, return_exceptions=True)
    assert house.admission.num_waiting() == 0


async def test_cancelling_leaves_nothing_behind() -> None:
    house = House()
    plain = make_context(name="gone", body=b"x" * 1000)
    context = Watched(**{field.name: getattr(plain, field.name) for field in fields(plain)})
    watch = weakref.ref(context)
    task = asyncio.create_task(house.admission.enter(context, lambda: None))
    await settle()
    assert house.admission.occupancy("all_full", "interactive") == (1, 200, 1000)
    task.cancel()
    await asyncio.wait({task})  # and not `await task`: its exception would hold the request through its frames
    assert task.cancelled()
    assert house.admission.occupancy("all_full", "interactive") == (0, 0, 0)
    assert house.admission.waiting_models() == {}
    house.timers.advance(1000.0)
    del context, task
    gc.collect()
    assert watch() is None


@pytest.mark.parametrize(
    ("is_up", "error", "status"), [(False, Unavailable, 503), (True, Overloaded, 429)], ids=["none up", "all full"]
)
@pytest.mark.parametrize(
    ("bound", "request_"),
    [({"max_requests": 2}, {}), ({"max_tokens": 250}, {}), ({"max_mib": 0.002}, {"body": b"x" * 1000})],
    ids=["requests", "tokens", "bytes"],
)
async def test_a_full_room_refuses_by_its_kind(
    is_up: bool, error: type[TandemError], status: int, bound: dict[str, float], request_: dict[str, Any]
) -> None:
    house = House(is_up=is_up, config=limits(**bound))
    tasks = [house.start(str(n), **request_) for n in range(2)]
    await settle()
    with pytest.raises(error) as caught:
        await house.request("late", **request_)
    assert caught.value.status == status
    assert 1.0 <= caught.value.retry_after_s <= 60.0  # type: ignore[attr-defined]
    assert house.admission.num_waiting() == 2
    batch = house.start("batch", "batch", **request_)
    await settle()
    assert not batch.done(), "the classes have bounds of their own"
    await house.free(3)
    await asyncio.gather(*tasks, batch)


@pytest.mark.parametrize(("is_up", "status"), [(False, 503), (True, 429)])
async def test_a_wait_that_is_too_long_ends_by_the_state_at_its_end(is_up: bool, status: int) -> None:
    house = House(is_up=not is_up, config=limits(max_wait_s=30.0))
    task = house.start("a")
    await settle()
    house.timers.advance(29.0)
    await settle()
    assert not task.done()
    house.is_up = is_up
    house.timers.advance(1.0)
    with pytest.raises(TandemError, match="within 30 s") as caught:
        await task
    assert caught.value.status == status
    assert house.admission.num_waiting() == 0


async def test_who_is_woken_as_the_time_runs_out_may_still_go() -> None:
    house = House(config=limits(max_wait_s=30.0))
    lucky, unlucky = house.start("a"), house.start("b")
    await settle()
    house.places["m"] = 1
    house.admission.notify()
    house.timers.advance(30.0)
    await settle()
    assert await lucky == "a"
    with pytest.raises(Overloaded):
        await unlucky


async def test_a_key_that_fills_the_room_makes_way_for_others() -> None:
    house = House(config=limits(max_requests=10))
    greedy = [house.start(f"g{n}", key="greedy") for n in range(10)]
    await settle()
    with pytest.raises(Overloaded):
        await house.request("g10", key="greedy")
    other = house.start("o", key="other")
    await settle()
    assert [task.done() for task in greedy] == [False] * 9 + [True]
    with pytest.raises(Overloaded, match="gave way"):
        await greedy[9]
    assert house.admission.occupancy("all_full", "interactive")[0] == 10
    await house.free(10)
    await asyncio.gather(*greedy[:9], other)


async def test_a_replica_that_comes_up_serves_those_who_waited_for_it() -> None:
    house = House(is_up=False)
    tasks = [house.start(name) for name in "ab"]
    await settle()
    assert house.admission.occupancy("none_up", "interactive")[0] == 2
    house.is_up = True
    await house.free(2)
    assert await asyncio.gather(*tasks) == ["a", "b"]


async def test_closing_turns_everybody_away() -> None:
    house = House()
    tasks = [house.start(name) for name in "ab"]
    await settle()
    house.admission.close()
    for task in tasks:
        with pytest.raises(Unavailable, match="shutting down"):
            await task
    with pytest.raises(Unavailable):
        await house.request("late")
    assert house.admission.num_waiting() == 0


async def test_what_the_autoscaler_reads() -> None:
    house = House()
    tasks = [house.start("a"), house.start("b", "batch"), house.start("c", model="n")]
    await settle()
    house.clock.advance(7.0)
    admission = house.admission
    assert (admission.num_waiting("m"), admission.num_waiting("m", "batch"), admission.num_waiting("x")) == (2, 1, 0)
    assert admission.longest_wait_s("m") == 7.0
    assert admission.longest_wait_s("x") == 0.0
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_the_rooms_are_metrics() -> None:
    house, registry = House(), CollectorRegistry()
    AdmissionMetrics(house.admission, registry)
    task = house.start("a", body=b"12345")
    await settle()
    house.clock.advance(3.0)
    labels = {"room": "all_full", "class": "interactive"}
    found = [
        registry.get_sample_value(f"tandem_gateway_waiting_{what}", labels) for what in ("requests", "tokens", "bytes")
    ]
    assert found == [1, 100, 5]
    assert registry.get_sample_value("tandem_gateway_waiting_requests", {**labels, "room": "none_up"}) == 0
    assert registry.get_sample_value("tandem_gateway_longest_wait_seconds") == 3.0
    await house.free()
    await task
    assert registry.get_sample_value("tandem_gateway_waiting_requests", labels) == 0


async def test_retry_after_grows_with_those_who_wait() -> None:
    house = House(config=limits(max_requests=30))
    tasks = [house.start(str(n)) for n in range(30)]
    await settle()
    for _ in range(10):
        house.clock.advance(2.0)
        await house.free()
        tasks.append(house.start("again"))
        await settle()
    with pytest.raises(Overloaded) as caught:
        await house.request("late")
    assert 20 < caught.value.retry_after_s <= 60
    assert math.isfinite(caught.value.retry_after_s)
    await house.free(100)
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("seed", range(8))
async def test_no_wake_up_is_lost_whatever_happens(seed: int) -> None:
    """Arrivals, ends, cancellations, expiries at random: no place stays free while somebody waits for it."""
    rng = random.Random(seed)
    house = House(config=limits(max_requests=60, max_wait_s=50.0))
    tasks: list[asyncio.Task[str]] = []
    for number in range(600):
        action = rng.random()
        if action < 0.5:
            service_class = rng.choice(["interactive", "batch"])
            tasks.append(house.start(str(number), service_class, key=str(rng.randrange(5))))
        elif action < 0.75:
            house.places["m"] += 1
            house.admission.notify()
        elif action < 0.9 and tasks:
            rng.choice(tasks).cancel()
        else:
            house.timers.advance(rng.random() * 5.0)
        for _ in range(rng.randrange(3)):
            await asyncio.sleep(0)
        if number % 20 == 0:
            await settle()
            assert house.places["m"] <= 0 or house.admission.num_waiting() == 0, "a wake-up was lost"
            assert house.places["m"] >= 0, "more went than there were places"
    await house.free(1000)
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(one, str | TandemError | asyncio.CancelledError) for one in done)
    assert house.admission.num_waiting() == 0
    for room in ("none_up", "all_full"):
        for service_class in ("interactive", "batch"):
            assert house.admission.occupancy(room, service_class) == (0, 0, 0)  # type: ignore[arg-type]
