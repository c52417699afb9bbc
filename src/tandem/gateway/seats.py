"""A request's place at a replica: taken the moment it is chosen, given back exactly once.

Counting at the choice, not at the sending, is what keeps a hundred requests that arrive at once from all choosing the
replica that was empty a moment ago.
"""

from __future__ import annotations

from tandem.gateway.context import RequestContext
from tandem.gateway.parts import Admission
from tandem.gateway.replicas.replica import Replica


class Seat:
    """`take` may be called again, for another replica; `close` any number of times."""

    __slots__ = ("_admission", "_context", "_counts_prompt", "_replica")

    def __init__(self, context: RequestContext, admission: Admission) -> None:
        self._context = context
        self._admission = admission
        self._replica: Replica | None = None
        self._counts_prompt = False

    def take(self, replica: Replica) -> None:
        if replica is self._replica:
            return
        self._give_back()
        self._replica = replica
        self._counts_prompt = True
        replica.in_flight += 1
        replica.in_flight_by_class[self._context.service_class] += 1
        replica.in_flight_prompt_tokens += self._context.prompt_tokens

    def got_first_token(self) -> None:
        """Its prompt is computed."""
        if self._counts_prompt and self._replica is not None:
            self._counts_prompt = False
            self._replica.in_flight_prompt_tokens -= self._context.prompt_tokens

    def close(self) -> None:
        """Somebody who waits may have the room."""
        if self._replica is not None:
            self._give_back()
            self._admission.notify()

    def _give_back(self) -> None:
        replica = self._replica
        if replica is None:
            return
        self.got_first_token()
        self._replica = None
        replica.in_flight -= 1
        replica.in_flight_by_class[self._context.service_class] -= 1
