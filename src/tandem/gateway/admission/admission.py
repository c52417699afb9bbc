"""Who may go now, who waits, and who is turned away. Knows nothing of replicas: `choose` and `has_replica_up` ask.

A request that finds a place goes at once. Otherwise it waits in one of two rooms: no replica of its model is up (one
may be starting), or all are full. Interactive requests go before batch ones, keys take turns, and within a key the
first come is the first served.

Wake-ups are exact. Whatever may have made room calls `notify`; then *one* waiter is woken, tries, and hands on: if it
found a place, to the next in its line, since there may be another; if not, to the next line. So one free place wakes
two requests and not five thousand; and as whoever is woken hands on also when it is cancelled, no wake-up is lost.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable

from tandem.config.gateway_admission import AdmissionConfig
from tandem.core.clock import Clock, SystemClock
from tandem.core.errors import Overloaded, TandemError, Unavailable
from tandem.core.types import ServiceClass
from tandem.gateway.admission.pace import Pace
from tandem.gateway.admission.rooms import RoomName, Rooms
from tandem.gateway.admission.waiting import Line, Timer, Waiter
from tandem.gateway.context import RequestContext
from tandem.gateway.routing.base import Decision

Choose = Callable[[], Decision | None]
"""Runs the routing policy over the replicas that have room now; None: none has. Called again at each try.

The caller must count the request on the replica before its first `await` after `enter` has returned.
"""
LineName = tuple[ServiceClass, str]


class Admission:
    """One for a gateway process; lives in its event loop."""

    def __init__(
        self,
        config: AdmissionConfig,
        has_replica_up: Callable[[RequestContext], bool],
        *,
        clock: Clock | None = None,
        call_later: Callable[[float, Callable[[], None]], Timer] | None = None,
    ) -> None:
        """`has_replica_up`: whether any replica could take the request if it had room. `call_later`: for tests."""
        self._config = config
        self._has_replica_up = has_replica_up
        self._clock = clock or SystemClock()
        self._call_later = call_later or _loop_call_later
        self._rooms = Rooms(config)
        self._lines: dict[LineName, Line] = {}
        self._pace = Pace()
        self._serials = itertools.count()
        self._to_try: dict[LineName, None] = {}
        """Lines in which room may have come up, to be tried in this order, interactive ones first."""
        self._skipped: set[Waiter] = set()
        self._trying: Waiter | None = None
        """The one that is woken and has not tried yet: it will hand on."""
        self._is_closed = False

    # For the proxy ---------------------------------------------------------------------------------------------------

    async def enter(self, context: RequestContext, choose: Choose) -> Decision:
        """The place that the request got, perhaps after a wait. Cancelling leaves nothing behind.

        Raises `Unavailable` (no replica up) or `Overloaded` (all full), with `retry_after_s`, when the room is full or
        the wait has been too long; and whatever `choose` raises.
        """
        may_go = not self._must_queue(context)
        if may_go and (decision := choose()) is not None:
            return decision
        waiter = self._take_place(context, has_tried=may_go)
        try:
            return await self._wait(waiter, choose)
        finally:
            self._leave(waiter)

    def notify(self, models: Iterable[str] | None = None) -> None:
        """There may be room: a request ended, a replica came up, new figures came in. `models`: for which; None: any.

        Cheap when nobody waits.
        """
        if not self._lines:
            return
        names = None if models is None else set(models)
        for name in self._lines:
            if names is None or name[1] in names:
                self._to_try[name] = None
        self._wake_next()

    def close(self) -> None:
        """Turn away everybody who waits, and whoever comes: the gateway is ending."""
        self._is_closed = True
        for line in list(self._lines.values()):
            for waiter in line.all():
                if not waiter.wake.done():
                    self._turn_away(waiter, self._closing())

    def reconfigure(self, config: AdmissionConfig) -> None:
        """New bounds from now on; whoever waits keeps its place and its time."""
        self._config = config
        self._rooms.reconfigure(config)

    # For the autoscaler, metrics and `tandem top` ---------------------------------------------------------------------

    def num_waiting(self, model: str | None = None, service_class: ServiceClass | None = None) -> int:
        return sum(
            len(line)
            for (line_class, line_model), line in self._lines.items()
            if model in (None, line_model) and service_class in (None, line_class)
        )

    def waiting_models(self) -> dict[str, int]:
        """model → requests that wait for it."""
        counts: dict[str, int] = {}
        for (_, model), line in self._lines.items():
            counts[model] = counts.get(model, 0) + len(line)
        return counts

    def longest_wait_s(self, model: str | None = None) -> float:
        """How long the first of those who wait has waited; 0 when nobody does."""
        since = [
            oldest
            for (_, line_model), line in self._lines.items()
            if model in (None, line_model) and (oldest := line.oldest_s()) is not None
        ]
        return self._clock.now() - min(since) if since else 0.0

    def occupancy(self, room: RoomName, service_class: ServiceClass) -> tuple[int, int, int]:
        """(requests, tokens, bytes) in a room."""
        occupancy = self._rooms.of(room, service_class)
        return occupancy.num_requests, occupancy.num_tokens, occupancy.num_bytes

    # Coming and leaving ----------------------------------------------------------------------------------------------

    def _must_queue(self, context: RequestContext) -> bool:
        """Nobody passes those who wait for the same model in the same class, and batch passes no interactive one."""
        if (context.service_class, context.model) in self._lines:
            return True
        if context.service_class == "interactive":
            return False
        return self._trying is not None or ("interactive", context.model) in self._lines

    def _take_place(self, context: RequestContext, has_tried: bool) -> Waiter:
        if self._is_closed:
            raise self._closing()
        room: RoomName = "all_full" if self._has_replica_up(context) else "none_up"
        occupancy = self._rooms.of(room, context.service_class)
        self._make_room(context, room)
        if bound := occupancy.full_of(context):
            raise self._refusal(context, room, f"the waiting room is full ({bound})")
        waiter = self._new_waiter(context, room, occupancy.limits.max_wait_s)
        occupancy.take(context)
        name = (context.service_class, context.model)
        line = self._lines.setdefault(name, Line())
        line.add(waiter)
        if not has_tried and line.head() is waiter:
            # Whoever waits in other lines goes first, but doesn't bar this one: its own replicas may have room.
            self._to_try[name] = None
            self._wake_next()
        return waiter

    def _new_waiter(self, context: RequestContext, room: RoomName, max_wait_s: float) -> Waiter:
        now_s, wake = self._clock.now(), asyncio.get_running_loop().create_future()
        waiter = Waiter(context, next(self._serials), room, now_s, now_s + max_wait_s, wake)
        waiter.timer = self._call_later(max_wait_s, lambda: self._expire(waiter))
        return waiter

    def _leave(self, waiter: Waiter) -> None:
        """However it ends, once."""
        if waiter.has_left:
            return
        waiter.has_left = True
        context = waiter.context
        if waiter.timer is not None:
            waiter.timer.cancel()
        self._rooms.of(waiter.room, context.service_class).give_back(context)
        name = (context.service_class, context.model)
        line = self._lines[name]
        line.remove(waiter, was_served=waiter.was_served)
        if not line:
            del self._lines[name]
            self._to_try.pop(name, None)
        self._skipped.discard(waiter)
        if waiter.was_served:
            self._pace.served(self._clock.now())
        self._hand_on(waiter)

    # Waiting and waking ----------------------------------------------------------------------------------------------

    async def _wait(self, waiter: Waiter, choose: Choose) -> Decision:
        while True:
            await waiter.wake
            decision = choose()
            if decision is not None:
                waiter.was_served = True
                return decision
            if self._is_closed:
                raise self._closing()
            if self._clock.now() >= waiter.expires_s:
                raise self._too_late(waiter)
            waiter.wake = asyncio.get_running_loop().create_future()
            self._not_placed(waiter)

    def _not_placed(self, waiter: Waiter) -> None:
        """It tried in vain. So would all others in its line, unless it is choosier than they are."""
        if waiter.context.excluded:
            self._skipped.add(waiter)
        else:
            self._to_try.pop((waiter.context.service_class, waiter.context.model), None)
        self._hand_on(waiter)

    def _hand_on(self, waiter: Waiter) -> None:
        """If it was this one's turn to try, it is another's now; after the caller has counted this one's request."""
        if self._trying is waiter:
            self._trying = None
            asyncio.get_running_loop().call_soon(self._wake_next)

    def _wake_next(self) -> None:
        if self._trying is not None:
            return  # it will hand on
        while self._to_try:
            name = min(self._to_try, key=_interactive_first)
            line = self._lines[name]
            waiter = line.next_without(self._skipped) if self._skipped else line.head()
            if waiter is not None:
                self._trying = waiter
                if not waiter.wake.done():  # else it was cancelled just now, and hands on as it leaves
                    waiter.wake.set_result(None)
                return
            del self._to_try[name]
        self._skipped.clear()

    # Turning away ----------------------------------------------------------------------------------------------------

    def _make_room(self, context: RequestContext, room: RoomName) -> None:
        """In a full room, the last comer of the key that has most waiting gives way to a key that has fewer."""
        line = self._lines.get((context.service_class, context.model))
        if line is None or not self._rooms.of(room, context.service_class).full_of(context):
            return
        last = line.newest_of_longest(line.num_of_key(context.caller.key_id))
        if last is not None and last.room == room and not last.wake.done():
            self._turn_away(last, self._refusal(last.context, room, "it gave way to a key with fewer waiting"))

    def _expire(self, waiter: Waiter) -> None:
        if not waiter.wake.done():  # else it is about to try, and looks at the time itself
            self._turn_away(waiter, self._too_late(waiter))

    def _turn_away(self, waiter: Waiter, error: TandemError) -> None:
        """Its place is free at once, not only when its task comes to run."""
        self._leave(waiter)
        if not waiter.wake.done():
            waiter.wake.set_exception(error)

    def _closing(self) -> TandemError:
        return Unavailable("The gateway is shutting down.", retry_after_s=self._config.min_retry_after_s)

    def _too_late(self, waiter: Waiter) -> TandemError:
        room: RoomName = "all_full" if self._has_replica_up(waiter.context) else "none_up"
        waited_s = self._clock.now() - waiter.since_s
        return self._refusal(waiter.context, room, f"none took the request within {waited_s:.0f} s")

    def _refusal(self, context: RequestContext, room: RoomName, why: str) -> TandemError:
        delay_s = self._retry_after_s(self._rooms.of(room, context.service_class).num_requests)
        if room == "none_up":
            return Unavailable(
                f"No engine of the model {context.model!r:.200} is up, and {why}. Try again later.",
                retry_after_s=delay_s,
            )
        return Overloaded(
            f"All engines of the model {context.model!r:.200} are full, and {why}. Try again later.",
            retry_after_s=delay_s,
        )

    def _retry_after_s(self, num_before: int) -> float:
        """Until those who wait now have been served at the present pace."""
        wait_s = self._pace.time_for(num_before + 1, self._clock.now())
        return min(self._config.max_retry_after_s, max(self._config.min_retry_after_s, wait_s))


def _interactive_first(name: LineName) -> bool:
    return name[0] != "interactive"


def _loop_call_later(delay_s: float, callback: Callable[[], None]) -> Timer:
    return asyncio.get_running_loop().call_later(delay_s, callback)
