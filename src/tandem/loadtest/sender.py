"""Sends conversations and keeps their records; a watcher ends what takes too long. Knows nothing of arrivals."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from tandem.core.clock import Clock
from tandem.loadtest.answer import Answer
from tandem.loadtest.bodies import Bodies
from tandem.loadtest.client import Client
from tandem.loadtest.record import Record
from tandem.traffic.work import Conversation, Turn

_WATCH_EVERY_S = 0.05


@dataclass(frozen=True, slots=True)
class Patience:
    """How long we listen."""

    timeout_s: float
    silence_s: float
    abort_after_s: float | None = None


class Sender:
    """Owns the records of one run. `start_s` on its clock is second 0 of all of them."""

    def __init__(
        self, client: Client, bodies: Bodies, patience: Patience, clock: Clock, *, is_streamed: bool = True
    ) -> None:
        self.records: list[Record] = []
        """Of all requests that were sent, in the order of sending."""
        self.num_open = 0
        self._client = client
        self._bodies = bodies
        self._patience = patience
        self._clock = clock
        self._is_streamed = is_streamed
        self._open: dict[asyncio.Task[None], Answer] = {}
        self.start_s = clock.now()

    def now(self) -> float:
        """Seconds of this run."""
        return self._clock.now() - self.start_s

    async def converse(self, conversation: Conversation, due_s: float, phase: int = 0) -> None:
        """Every turn after the answer to the one before; a failed turn ends the conversation."""
        history: list[dict[str, Any]] = []
        for index, turn in enumerate(conversation.turns):
            if index:
                await asyncio.sleep(turn.pause_s)
                due_s = self.now()
            history += turn.messages
            is_last = index == len(conversation.turns) - 1
            record = await self._send(history, turn, conversation, due_s, phase, keeps_text=not is_last)
            if not record.is_ok:
                return
            history.append({"role": "assistant", "content": record.text})

    async def _send(
        self,
        history: list[dict[str, Any]],
        turn: Turn,
        conversation: Conversation,
        due_s: float,
        phase: int,
        *,
        keeps_text: bool,
    ) -> Record:
        body = self._bodies.encode(history, turn, conversation.extra)
        record = Record(due_s, turn.input_tokens, turn.max_tokens, sent_s=self.now(), phase=phase)
        record.end_s = record.last_s = record.sent_s
        answer = Answer(record, self.now, is_streamed=self._is_streamed, keeps_text=keeps_text)
        self.records.append(record)
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = answer
        self.num_open += 1
        try:
            await self._client.send(self._bodies.path, body, answer)
        except asyncio.CancelledError:
            record.end_s = self.now()
            # Cancelled by the watcher, who has written what for; by anyone else it is the end of the run.
            if not record.problem:
                raise
            task.uncancel()
        finally:
            self._open.pop(task, None)
            self.num_open -= 1
        return record

    async def watch(self) -> None:
        """Ends answers that are too long or too silent, for as long as it runs."""
        while True:
            await asyncio.sleep(_WATCH_EVERY_S)
            now_s = self.now()
            for task, answer in list(self._open.items()):
                if verdict := _too_long(answer, now_s, self._patience):
                    answer.record.status, answer.record.problem = verdict
                    self._open.pop(task)
                    task.cancel()


def _too_long(answer: Answer, now_s: float, patience: Patience) -> tuple[Any, str] | None:
    record = answer.record
    age_s = now_s - record.sent_s
    if patience.abort_after_s is not None and age_s > patience.abort_after_s:
        return "incomplete", f"left by the client after {patience.abort_after_s:g} s"
    if age_s > patience.timeout_s:
        return "error", f"no end within {patience.timeout_s:g} s ({_came(record)})"
    if now_s - answer.last_byte_s > patience.silence_s:
        return "error", f"no byte for {patience.silence_s:g} s ({_came(record)})"
    return None


def _came(record: Record) -> str:
    return "nothing came" if not record.chunks else "the stream had begun"
