"""One prompt's way through the engine: its outputs become pieces of its answers, and what happened is counted, once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from tandem.core.errors import EngineFailed
from tandem.core.types import FinishReason
from tandem.engine.answers import Answer, Piece
from tandem.engine.front.admission import Ticket
from tandem.engine.front.front import Front
from tandem.engine.messages import NewRequest, Output, RequestUsage, TokenLogprobs

_WORST_FIRST: Final[tuple[FinishReason, ...]] = ("error", "abort", "length", "stop")


class Generation:
    """Owns the engine's generator while `pieces` runs: closing `pieces` closes it, and that aborts the request."""

    def __init__(self, front: Front, new: NewRequest, ticket: Ticket, first_index: int, echo: str) -> None:
        self.new = new
        self.echo = echo
        """The prompt's text, where the answer repeats it."""
        self.prompt_logprobs: list[TokenLogprobs | None] | None = None
        """There from the first piece on, if asked for."""
        self.answers = [
            Answer(first_index + k, front.text.open_stream(new.sampling), new.sampling) for k in range(new.sampling.n)
        ]
        self._front = front
        self._ticket = ticket
        self._first_token_s: float | None = None
        self._num_unfinished = new.sampling.n
        self._ended_early = False

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """What each output adds, as it comes. Raises `EngineFailed` or `Unavailable`; nothing is counted twice."""
        failure: FinishReason | None = "abort"
        try:
            async with aclosing(self._front.client.generate(self.new)) as outputs:
                async for output in outputs:
                    piece = self._take(output)
                    if piece is not None:
                        yield piece
                    if self._ended_early and self._num_unfinished == 0:
                        break
            if self._num_unfinished:
                raise EngineFailed("The engine ended the request before it was finished.")
            failure = None
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException:
            failure = "error"
            raise
        finally:
            self._account(failure)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.new.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return sum(answer.num_tokens for answer in self.answers)

    def usages(self) -> list[RequestUsage]:
        """The engine's account of each answer that it finished.

        With no tokens wanted there was one computation for all n answers, and each reports all of it.
        """
        usages = [answer.usage for answer in self.answers if answer.usage is not None]
        return usages[:1] if self.new.sampling.max_tokens == 0 else usages

    def _take(self, output: Output) -> Piece | None:
        now_s = self._front.clock.now()
        answer = self.answers[output.index]
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = output.prompt_logprobs
        self._time(answer, output, now_s)
        was_unfinished = answer.finish_reason is None
        piece = answer.take(output, now_s)
        if was_unfinished and answer.finish_reason is not None:
            self._num_unfinished -= 1
            self._ended_early |= output.finish_reason is None
        return piece

    def _time(self, answer: Answer, output: Output, now_s: float) -> None:
        metrics = self._front.metrics
        if answer.last_token_s is not None:
            metrics.token_gap(now_s - answer.last_token_s)
            return
        self._ticket.start()
        if self._first_token_s is None and output.token_ids:
            self._first_token_s = now_s
            metrics.first_token(now_s - self.new.arrival_s)

    def _account(self, failure: FinishReason | None) -> None:
        """The request's one entry in every count, when it has ended, however it ended."""
        self._ticket.close()
        metrics, usages = self._front.metrics, self.usages()
        reasons = {failure or answer.finish_reason for answer in self.answers}
        reason = next(reason for reason in _WORST_FIRST if reason in reasons)
        if any(answer.last_token_s is not None for answer in self.answers):
            metrics.prompt_computed(self.num_prompt_tokens, usages[0].num_cached_tokens if usages else 0)
        metrics.wasted(sum(answer.num_wasted_tokens for answer in self.answers))
        metrics.finished(reason, self.num_output_tokens)
        if failure is None:
            last_s = max(answer.last_token_s or self.new.arrival_s for answer in self.answers)
            metrics.completed(last_s - self.new.arrival_s, self._per_token_s(last_s), usages[0] if usages else None)

    def _per_token_s(self, last_s: float) -> float | None:
        """Mean time for each token after the first, of the longest answer; None where there were fewer than two."""
        num_tokens = max(answer.num_tokens for answer in self.answers)
        if self._first_token_s is None or num_tokens < 2:
            return None
        return (last_s - self._first_token_s) / (num_tokens - 1)
