"""The main loop of an engine: schedule, run, update. Knows no sockets and no text; `core_process.py` feeds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tandem.core.clock import Clock
from tandem.core.request import Rank, Request, StopWatch
from tandem.engine.kvcache.events import CacheEventLog
from tandem.engine.messages import EngineStats, NewRequest, Output, RequestUsage, TokenLogprobs
from tandem.engine.runner.base import ModelRunner, StepResult
from tandem.engine.scheduler import ScheduledRequest, Scheduler, StepPlan
from tandem.engine.stats import StatsKeeper
from tandem.engine.stopping import check_stop
from tandem.protocol.state import KVEvent

StopWatchFactory = Callable[[NewRequest], StopWatch | None]
"""Makes the follower of one answer's text; None where the request has no stop strings."""


@dataclass(slots=True)
class _Entry:
    """A request as it came, and its answers: one until the prompt is computed, then n."""

    new: NewRequest
    answers: list[Request]
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=lambda: [None])
    num_unfinished: int = 0


class EngineCore:
    """Takes `NewRequest`s, gives `Output`s, one step at a time."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: ModelRunner,
        clock: Clock,
        *,
        eos_token_ids: frozenset[int],
        watch_text: StopWatchFactory,
        stats: StatsKeeper,
        cache_events: CacheEventLog | None = None,
    ) -> None:
        self.scheduler = scheduler
        self._runner = runner
        self._clock = clock
        self._eos_token_ids = eos_token_ids
        self._watch_text = watch_text
        self._stats = stats
        self._cache_events = cache_events
        self._entries: dict[str, _Entry] = {}
        self._next_serial = 0

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def stats(self) -> EngineStats:
        stats = self._stats.report(self._clock.now())
        if self._cache_events is not None:
            stats.kv_events_sequence = self._cache_events.sequence
        return stats

    def watch_cache(self, is_on: bool) -> None:
        """Whether changes of the prefix cache are recorded; see `CacheEventLog.watch`."""
        if self._cache_events is not None:
            self._cache_events.watch(is_on)

    def take_cache_events(self) -> list[KVEvent]:
        """Those since the last call; none unless somebody watches."""
        return [] if self._cache_events is None else self._cache_events.take(self.scheduler.kv.pool)

    def add(self, new: NewRequest) -> None:
        """Queue a request that the front has checked."""
        request = Request(
            request_id=new.request_id,
            prompt_token_ids=new.prompt_token_ids,
            sampling=new.sampling,
            rank=Rank(new.priority, new.arrival_s, self._next_serial),
            service_class=new.service_class,
            cache_salt=new.cache_salt,
            eos_token_ids=self._eos_token_ids,
            stop_watch=self._watch_text(new),
        )
        self._next_serial += new.sampling.n
        self.scheduler.add(request)
        self._entries[new.request_id] = _Entry(new, [request], num_unfinished=new.sampling.n)

    def abort(self, request_id: str) -> None:
        """Drop all answers of a request at once. One that is not there has just finished."""
        entry = self._entries.pop(request_id, None)
        for request in entry.answers if entry else ():
            if not request.is_finished:
                self.scheduler.finish(request, "abort")
                self._runner.release(request)

    def step(self) -> list[Output]:
        """One step of the engine: schedule, run, update. With nothing to do there are no outputs."""
        started_s = self._clock.now()
        plan = self.scheduler.schedule(started_s)
        if not plan.scheduled:
            return self._fail_unschedulable()
        result = self._runner.execute(plan)
        ended_s = self._clock.now()
        self._stats.account(plan, started_s, ended_s)
        return self._update(plan, result, ended_s)

    def _fail_unschedulable(self) -> list[Output]:
        """Work is there and none of it can be scheduled: fail what stands in the way rather than wait for ever.

        The memory plan rules it out; should it be wrong for some shape of model, one request pays and not the engine.
        """
        stuck = self.scheduler.waiting.first()
        if stuck is None or self.scheduler.running:
            return []
        message = f"The engine has no room for a request of {stuck.num_tokens} tokens, even alone."
        self._runner.release(stuck)
        self.scheduler.finish(stuck, "error")
        entry = self._entries[stuck.request_id]
        indices = range(stuck.index, stuck.index + stuck.num_seats)
        entry.num_unfinished -= len(indices)
        if entry.num_unfinished == 0:
            del self._entries[stuck.request_id]
        return [Output(stuck.request_id, index, [], finish_reason="error", error=message) for index in indices]

    def _update(self, plan: StepPlan, result: StepResult, now_s: float) -> list[Output]:
        """Count what was computed, append what was sampled, and end what has reached its end."""
        self.scheduler.advance(plan)
        outputs: list[Output] = []
        for scheduled in plan.scheduled:
            entry = self._entries[scheduled.request.request_id]
            if scheduled.request in result.prompt_logprobs:
                self._collect_prompt_logprobs(entry, scheduled, result.prompt_logprobs[scheduled.request])
            if scheduled.samples:
                for answer in self._answers(entry, scheduled.request):
                    outputs.append(self._append_token(entry, answer, result, len(outputs), now_s))
        # Requests that wanted no tokens come last, so that outputs and sampled tokens count alike above.
        for scheduled in plan.scheduled:
            if scheduled.request.max_tokens == 0 and scheduled.request.num_uncomputed_tokens == 0:
                outputs.extend(self._finish_scored(scheduled.request, now_s))
        return outputs

    def _answers(self, entry: _Entry, request: Request) -> list[Request]:
        """The answers that get a token from this request's logits: all n the first time, itself later."""
        if request.num_seats > 1:
            entry.answers = self.scheduler.fork(request, request.num_seats)
            for answer in entry.answers[1:]:
                answer.stop_watch = self._watch_text(entry.new)
            return entry.answers
        return [request]

    def _append_token(self, entry: _Entry, request: Request, result: StepResult, position: int, now_s: float) -> Output:
        token_id = result.token_ids[position]
        is_first = request.num_output_tokens == 0
        request.token_ids.append(token_id)
        if request.first_token_s is None:
            request.first_token_s = now_s
        output = Output(request.request_id, request.index, [token_id])
        logprobs = result.logprobs[position] if result.logprobs else None
        if logprobs is not None:
            output.logprobs = [logprobs]
        if is_first and request.index == 0 and request.sampling.prompt_logprobs is not None:
            output.prompt_logprobs = entry.prompt_logprobs
        stop = check_stop(request, token_id)
        if stop is not None:
            request.stop_reason = stop.detail
            self.scheduler.finish(request, stop.reason)
            self._complete(entry, request, output, now_s)
        return output

    def _finish_scored(self, request: Request, now_s: float) -> list[Output]:
        """End a request that wanted its prompt computed and no token: one output for each of its n answers."""
        entry = self._entries[request.request_id]
        self.scheduler.finish(request, "length")
        outputs = [Output(request.request_id, index, []) for index in range(request.sampling.n)]
        if request.sampling.prompt_logprobs is not None:
            outputs[0].prompt_logprobs = entry.prompt_logprobs
        for output in outputs:
            self._complete(entry, request, output, now_s)
        return outputs

    def _complete(self, entry: _Entry, request: Request, output: Output, now_s: float) -> None:
        output.finish_reason = request.finish_reason
        output.stop_reason = request.stop_reason
        output.usage = _usage(request, now_s)
        self._runner.release(request)
        entry.num_unfinished -= 1
        if entry.num_unfinished == 0:
            del self._entries[request.request_id]

    def _collect_prompt_logprobs(
        self, entry: _Entry, scheduled: ScheduledRequest, computed: list[TokenLogprobs | None]
    ) -> None:
        """`computed` is for the positions after `start`; a preempted prompt computes some of them again."""
        already = len(entry.prompt_logprobs) - (scheduled.start + 1)
        entry.prompt_logprobs.extend(computed[already:])


def _usage(request: Request, now_s: float) -> RequestUsage:
    arrived_s = request.rank.arrival_s
    seated_s = request.first_seat_s if request.first_seat_s is not None else now_s
    first_s = request.first_token_s if request.first_token_s is not None else now_s
    return RequestUsage(
        num_prompt_tokens=request.num_prompt_tokens,
        num_cached_tokens=request.num_cached_tokens,
        num_output_tokens=request.num_output_tokens,
        queue_s=max(0.0, seated_s - arrived_s),
        prefill_s=first_s - seated_s,
        decode_s=now_s - first_s,
        engine_s=request.engine_s,
        kv_block_s=request.kv_block_s,
        num_preemptions=request.num_preemptions,
        num_wasted_tokens=request.num_wasted_tokens,
    )
