"""One line until it has an answer that counts: refusals wait and go again, failures a few times.

Two things can refuse it. Where the engines are full, all lines of all batches wait, and fewer run from then on. Where
the key's own limit is reached, only the lines of that key wait.
"""

from __future__ import annotations

import asyncio
from typing import Final

from tandem.core.clock import Clock
from tandem.gateway.batches.lines import Execute, LineAnswer, LineRequest, Verdict, attempt, judge
from tandem.gateway.batches.room import MAX_PAUSE_S, Room

_MAX_BACKOFF_S: Final = 30.0


class Sender:
    """Shared by all batches of a process. On the event loop only."""

    def __init__(self, execute: Execute, room: Room, clock: Clock, line_attempts: int) -> None:
        self._execute = execute
        self._clock = clock
        self._line_attempts = line_attempts
        self._paused_until_s: dict[str, float] = {}
        """Key id → when its own limit lets it go on."""
        self.room = room

    async def answer(self, request: LineRequest) -> LineAnswer:
        """However long that takes; the batch's window ends it by cancelling."""
        num_tries = num_broken = 0
        while True:
            async with self.room.seat(again=num_tries > 0):
                answer = await attempt(self._execute, request)
            num_tries += 1
            verdict = judge(answer)
            num_broken += verdict is Verdict.BROKEN
            if verdict is Verdict.DONE or num_broken >= self._line_attempts:
                self.room.answered()
                return answer
            await self._wait(request.key_id, verdict, answer, num_tries)

    def pause_s(self, key_id: str) -> float:
        """How long lines of this key must wait yet; 0 or less: not at all."""
        return self._paused_until_s.get(key_id, 0.0) - self._clock.now()

    async def _wait(self, key_id: str, verdict: Verdict, answer: LineAnswer, num_tries: int) -> None:
        backoff_s = min(_MAX_BACKOFF_S, 0.25 * 2.0 ** min(num_tries, 10))
        wait_s = min(answer.retry_after_s or backoff_s, MAX_PAUSE_S)
        if verdict is Verdict.FULL:
            self.room.full(wait_s)  # The next seat is given only then.
            return
        if verdict is Verdict.LIMITED:
            until_s = self._clock.now() + wait_s
            self._paused_until_s[key_id] = max(self._paused_until_s.get(key_id, 0.0), until_s)
        await asyncio.sleep(wait_s)
