"""One line of waiting requests: those of one model and one service class. Fair between keys, in order within a key.

Start-time fair queueing (Goyal et al., 1997): each key has a virtual time that moves on by the tokens it was given,
divided by its weight, and the key that is furthest behind is served next. A key that comes back starts at the line's
present time: nobody saves up turns by staying away. With a single key it is a plain queue.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol

from tandem.gateway.admission.rooms import RoomName
from tandem.gateway.context import RequestContext


class Timer(Protocol):
    def cancel(self) -> None: ...


@dataclass(slots=True, eq=False)
class Waiter:
    """One request that waits. `wake` is resolved when it may try, or has an exception when it must leave."""

    context: RequestContext
    serial: int
    """Order of arrival."""
    room: RoomName
    since_s: float
    expires_s: float
    wake: asyncio.Future[None]
    timer: Timer | None = None
    was_served: bool = False
    has_left: bool = False


class _Key:
    """Of one API key: its waiting requests by serial, oldest first, and how far it has been served."""

    __slots__ = ("virtual_tokens", "waiters", "weight")

    def __init__(self, virtual_tokens: float, weight: float) -> None:
        self.virtual_tokens = virtual_tokens
        self.weight = weight
        self.waiters: OrderedDict[int, Waiter] = OrderedDict()


class Line:
    """Knows nothing of bounds and of wake-ups. Every operation costs O(log keys)."""

    def __init__(self) -> None:
        self._keys: dict[str, _Key] = {}
        self._heap: list[tuple[float, int, int, str]] = []
        """(virtual time, serial of the key's oldest, tie-breaker, key); outdated entries are passed over."""
        self._ties = itertools.count()
        self._virtual_tokens = 0.0
        self.num_waiting = 0

    def __len__(self) -> int:
        return self.num_waiting

    def add(self, waiter: Waiter) -> None:
        caller = waiter.context.caller
        key = self._keys.get(caller.key_id)
        if key is None:
            key = self._keys[caller.key_id] = _Key(self._virtual_tokens, max(1e-6, caller.weight))
        elif not key.waiters:
            key.virtual_tokens = max(key.virtual_tokens, self._virtual_tokens)
        key.waiters[waiter.serial] = waiter
        self.num_waiting += 1
        if len(key.waiters) == 1:
            self._push(caller.key_id, key)

    def remove(self, waiter: Waiter, *, was_served: bool = False) -> None:
        """It leaves. Only those who were served move their key's time on."""
        key_id = waiter.context.caller.key_id
        key = self._keys[key_id]
        del key.waiters[waiter.serial]
        self.num_waiting -= 1
        if was_served:
            self._virtual_tokens = max(self._virtual_tokens, key.virtual_tokens)
            key.virtual_tokens += max(1, waiter.context.total_tokens) / key.weight
        if key.waiters:
            self._push(key_id, key)
        if self.num_waiting == 0:
            self._keys.clear()
            self._heap.clear()

    def head(self) -> Waiter | None:
        """Whose turn it is."""
        while self._heap:
            virtual, serial, _, key_id = self._heap[0]
            key = self._keys.get(key_id)
            if key is not None and key.waiters:
                oldest = next(iter(key.waiters))
                if (virtual, serial) == (key.virtual_tokens, oldest):
                    return key.waiters[oldest]
            heapq.heappop(self._heap)
        return None

    def next_without(self, skipped: set[Waiter]) -> Waiter | None:
        """Whose turn it is when some can't be placed now. Walks the whole line; seldom needed."""
        order = sorted(self._keys.values(), key=lambda key: key.virtual_tokens)
        for key in order:
            for waiter in key.waiters.values():
                if waiter not in skipped:
                    return waiter
        return None

    def newest_of_longest(self, than: int) -> Waiter | None:
        """The last comer of the key that has most waiting, if that is more than `than` + 1."""
        longest = max(self._keys.values(), key=lambda key: len(key.waiters), default=None)
        if longest is None or len(longest.waiters) <= than + 1:
            return None
        return longest.waiters[next(reversed(longest.waiters))]

    def all(self) -> list[Waiter]:
        return [waiter for key in self._keys.values() for waiter in key.waiters.values()]

    def num_of_key(self, key_id: str) -> int:
        key = self._keys.get(key_id)
        return len(key.waiters) if key else 0

    def oldest_s(self) -> float | None:
        """Since when the first of those who wait has waited."""
        return min((next(iter(k.waiters.values())).since_s for k in self._keys.values() if k.waiters), default=None)

    def _push(self, key_id: str, key: _Key) -> None:
        heapq.heappush(self._heap, (key.virtual_tokens, next(iter(key.waiters)), next(self._ties), key_id))
        if len(self._heap) > 2 * self.num_waiting + 64:
            self._tidy()

    def _tidy(self) -> None:
        """Drop outdated entries, and keys that wait for nothing and are not ahead of the others."""
        now = self._virtual_tokens
        self._keys = {name: key for name, key in self._keys.items() if key.waiters or key.virtual_tokens > now}
        self._heap = [
            (key.virtual_tokens, next(iter(key.waiters)), next(self._ties), key_id)
            for key_id, key in self._keys.items()
            if key.waiters
        ]
        heapq.heapify(self._heap)
