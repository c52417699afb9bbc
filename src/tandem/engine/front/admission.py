"""Who may wait. The front counts what it has sent and has seen no token of, so the count is never stale.

A ticket belongs to one prompt from before it is tokenised until it has ended:

    admit (requests checked) → charge_tokens (tokens checked) → start (first token: waits no more) → close
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Literal

from tandem.core.errors import InvalidRequest, Overloaded
from tandem.engine.messages import EngineStats

Situation = Literal["full", "loading", "draining", "engine_down"]
_FIXED_RETRY_S: Final[dict[Situation, float]] = {"loading": 5.0, "draining": 5.0, "engine_down": 10.0}
_LONGEST_RETRY_S: Final = 60.0


def retry_after_s(situation: Situation, num_waiting_tokens: int = 0, stats: EngineStats | None = None) -> float:
    """When it makes sense to come again. With a full queue: when the newest step's speed would have emptied it."""
    if situation != "full":
        return _FIXED_RETRY_S[situation]
    if stats is None or stats.last_step_s <= 0 or stats.last_step_tokens <= 0:
        return 1.0
    tokens_per_s = stats.last_step_tokens / stats.last_step_s
    return float(min(_LONGEST_RETRY_S, max(1, math.ceil(num_waiting_tokens / tokens_per_s))))


class Ticket:
    """One prompt's place. Closing it twice is harmless, so that it can be closed wherever its life may end."""

    __slots__ = ("_admission", "_is_open", "_is_waiting", "_num_seqs", "_num_tokens")

    def __init__(self, admission: Admission, num_seqs: int) -> None:
        self._admission = admission
        self._num_seqs = num_seqs
        self._num_tokens = 0
        self._is_waiting = True
        self._is_open = True
        admission.num_seqs += num_seqs
        admission.num_waiting_seqs += num_seqs

    def charge(self, num_tokens: int) -> None:
        self._num_tokens += num_tokens
        self._admission.num_waiting_tokens += num_tokens

    def start(self) -> None:
        """The first token is there: it has a seat, and its prompt is computed."""
        if self._is_waiting:
            self._is_waiting = False
            self._admission.num_waiting_seqs -= self._num_seqs
            self._admission.num_waiting_tokens -= self._num_tokens

    def close(self) -> None:
        self.start()
        if self._is_open:
            self._is_open = False
            self._admission.num_seqs -= self._num_seqs


class Admission:
    """Bounds what waits, in sequences (each of a request's n answers counts) and in prompt tokens.

    Seats that are free count as room: with `max_queued_requests = 0` an idle engine still takes `max_num_seqs`.
    """

    def __init__(self, max_queued_requests: int, max_queued_tokens: int) -> None:
        self._max_queued_requests = max_queued_requests
        self._max_queued_tokens = max_queued_tokens
        self.num_seqs = 0
        """Admitted and not ended."""
        self.num_waiting_seqs = 0
        """Of those, without a first token."""
        self.num_waiting_tokens = 0
        """Prompt tokens of those that are tokenised already."""

    def admit(self, num_prompts: int, num_answers: int, max_num_seqs: int, stats: EngineStats) -> list[Ticket]:
        """A ticket for each prompt, or none at all: `Overloaded`. Called before any work is done for the request."""
        wanted, room = num_prompts * num_answers, max_num_seqs + self._max_queued_requests
        if num_answers > max_num_seqs:
            raise InvalidRequest(f"n is {num_answers}; this engine runs at most {max_num_seqs} at once.", param="n")
        if wanted > room:
            raise InvalidRequest(
                f"{num_prompts} prompts times {num_answers} answers are {wanted} sequences; this engine takes at most "
                f"{room}. Send fewer prompts in one request.",
                param="prompt",
            )
        if self.num_seqs + wanted > room:
            raise self._overloaded(f"{self.num_seqs} requests run or wait already", stats)
        return [Ticket(self, num_answers) for _ in range(num_prompts)]

    def charge_tokens(self, tickets: Sequence[Ticket], counts: Sequence[int], stats: EngineStats) -> None:
        """Charge each ticket its prompt's tokens, or raise `Overloaded`. Where nothing else waits, any prompt may."""
        total = sum(counts)
        if self.num_waiting_tokens and self.num_waiting_tokens + total > self._max_queued_tokens:
            raise self._overloaded(f"{self.num_waiting_tokens} prompt tokens are waiting already", stats)
        for ticket, count in zip(tickets, counts, strict=True):
            ticket.charge(count)

    def _overloaded(self, reason: str, stats: EngineStats) -> Overloaded:
        delay_s = retry_after_s("full", self.num_waiting_tokens, stats)
        return Overloaded(f"The queue is full: {reason}. Try again in {delay_s:g} s.", retry_after_s=delay_s)
