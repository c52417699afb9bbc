"""The waiting room: requests without a seat, in the order in which they will get one."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from tandem.core.request import Rank, Request


def _rank(request: Request) -> Rank:
    return request.rank


class WaitingQueue:
    """Sorted by rank (priority, arrival). A preempted request keeps its rank, so it comes back near the front."""

    def __init__(self) -> None:
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def add(self, request: Request) -> None:
        insort(self._requests, request, key=_rank)

    def remove(self, request: Request) -> None:
        index = bisect_left(self._requests, request.rank, key=_rank)
        assert self._requests[index] is request, f"{request.request_id} is not waiting"
        del self._requests[index]

    def first(self) -> Request | None:
        return self._requests[0] if self._requests else None

    def shortest(self, among: int) -> Request | None:
        """The one with the fewest tokens to compute, among the first few of the best priority."""
        if not self._requests:
            return None
        priority = self._requests[0].rank.priority
        candidates = (r for r in self._requests[:among] if r.rank.priority == priority)
        return min(candidates, key=lambda r: r.num_uncomputed_tokens)
