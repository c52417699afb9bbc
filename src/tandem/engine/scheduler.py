"""How many tokens each request gets this step. No torch, no sockets, no clock: tokens in, a plan out.

There is no prefill phase and no decode phase. A request has known tokens (its prompt, then what was generated) and
computed tokens (those whose KV is present); each step brings the second number nearer to the first. A chat that
generates lacks one token, a new prompt lacks all of them, a preempted answer lacks prompt and output: all are the same
case, and chunked prefill, prefix hits and recomputation need no code of their own.

The rule of a step, within the token budget:

1. Requests that lack one token (they generate) go first, best rank first, so that a long prompt never stalls them.
2. What is left goes to prompts in two lanes: the *oldest* gets at least half of it, so that every prompt is computed in
   bounded time; the *shortest* gets the rest, so that a short question doesn't wait for a long document before it.
3. If KV runs out, the request of the worst rank (lowest priority, then newest) is preempted: its blocks are freed and
   it waits again, to be recomputed. A request of better priority may in this way take a seat from one of worse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tandem.core.request import Request, RequestStatus
from tandem.core.types import FinishReason
from tandem.engine.kvcache.manager import BlockCopy, KVCacheManager, PrefixHit
from tandem.engine.queue import WaitingQueue

PROMPT_LOGPROBS_CHUNK = 64
"""Most tokens a step computes of a prompt whose logprobs are wanted: each needs a row of logits over the vocabulary."""
SHORTEST_LANE_DEPTH = 32
"""How far down the waiting room the lane for short prompts looks."""


@dataclass(slots=True)
class ScheduledRequest:
    """`num_tokens` tokens from `num_computed_tokens` on are computed for `request` in this step."""

    request: Request
    start: int
    num_tokens: int
    samples: bool = field(init=False)
    """The last known token is computed, so its logits choose the next one."""

    def __post_init__(self) -> None:
        self.samples = self.start + self.num_tokens == self.request.num_tokens and self.request.max_tokens > 0

    @property
    def num_samples(self) -> int:
        """Tokens to sample: n for a prompt that is about to fork, one for a running answer, none for a part."""
        return self.request.num_seats if self.samples else 0


@dataclass(slots=True)
class StepPlan:
    """What one step computes. `block_copies` are made first."""

    scheduled: list[ScheduledRequest] = field(default_factory=list)
    block_copies: list[BlockCopy] = field(default_factory=list)
    num_tokens: int = 0
    preempted: list[Request] = field(default_factory=list)
    """Lost their seats while this step was planned; one of them may have got a new one since."""


@dataclass(slots=True)
class SchedulerCounters:
    """Since start."""

    num_preemptions: int = 0
    num_recomputed_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    num_wasted_tokens: int = 0


class Scheduler:
    """Owns every unfinished request: those with a seat (`running`) and those without (`waiting`)."""

    def __init__(
        self, kv: KVCacheManager, *, max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int
    ) -> None:
        self.kv = kv
        self.running: list[Request] = []
        self.waiting = WaitingQueue()
        self.counters = SchedulerCounters()
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._max_model_len = max_model_len
        self._num_seats = 0

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def add(self, request: Request) -> None:
        """Put a new request in the waiting room. Its prompt fits `max_model_len`: the front has checked."""
        assert 0 < request.num_prompt_tokens <= self._max_model_len, "an impossible prompt reached the scheduler"
        assert request.sampling.n <= self._max_num_seqs, "more answers asked for than there are seats"
        room = self._max_model_len - request.num_prompt_tokens
        wanted = request.sampling.max_tokens
        request.max_tokens = room if wanted is None else min(wanted, room)
        self.waiting.add(request)

    # Planning a step -------------------------------------------------------------------------------------------------

    def schedule(self, now_s: float = 0.0) -> StepPlan:
        """Plan the next step. An empty plan means that there is nothing to do."""
        plan = StepPlan()
        self._schedule_generating(plan)
        self._schedule_prompts(plan, now_s)
        plan.block_copies = self.kv.take_copies()
        return plan

    def _schedule_generating(self, plan: StepPlan) -> None:
        self.running.sort(key=lambda r: r.rank)
        for request in [r for r in self.running if r.num_uncomputed_tokens == 1]:
            if self._left(plan) and request.status is RequestStatus.RUNNING:
                self._give_tokens(plan, request, 1)

    def _schedule_prompts(self, plan: StepPlan, now_s: float) -> None:
        left = self._max_num_batched_tokens - plan.num_tokens
        oldest = self._oldest_prompt()
        if left <= 0 or oldest is None:
            return
        shortest = self._shortest_prompt(oldest)
        share = left if shortest is None else left - min(left // 2, shortest.num_uncomputed_tokens)
        admitting = self._give_prompt(plan, oldest, share, now_s) or oldest.status is RequestStatus.RUNNING
        if admitting and shortest is not None:
            self._give_prompt(plan, shortest, self._left(plan), now_s)
        self._fill_up(plan, now_s, admitting)

    def _fill_up(self, plan: StepPlan, now_s: float, admitting: bool) -> None:
        """Give what the two lanes left over to further prompts, by rank.

        Where the oldest found no room (not `admitting`), nobody else gets in: what is freed is kept for it.
        """
        taken = {id(s.request) for s in plan.scheduled}
        for seated in [r for r in self.running if r.num_uncomputed_tokens > 1 and id(r) not in taken]:
            if self._left(plan) and seated.status is RequestStatus.RUNNING:
                self._give_prompt(plan, seated, self._left(plan), now_s)
        while admitting and self._left(plan) and (request := self.waiting.first()):
            admitting = self._give_prompt(plan, request, self._left(plan), now_s)

    def _left(self, plan: StepPlan) -> int:
        return self._max_num_batched_tokens - plan.num_tokens

    def _oldest_prompt(self) -> Request | None:
        """The best-ranked request with more than one token to compute, seated or waiting."""
        seated = next((r for r in self.running if r.num_uncomputed_tokens > 1), None)
        waiting = self.waiting.first()
        if seated is None or waiting is None:
            return seated or waiting
        return seated if seated.rank < waiting.rank else waiting

    def _shortest_prompt(self, oldest: Request) -> Request | None:
        """A prompt of the same priority with less left to compute than the oldest."""
        seated = [r for r in self.running if r.num_uncomputed_tokens > 1]
        waiting = self.waiting.shortest(SHORTEST_LANE_DEPTH)
        candidates = [r for r in (*seated, waiting) if r is not None and r.rank.priority == oldest.rank.priority]
        shortest = min(candidates, key=lambda r: r.num_uncomputed_tokens, default=oldest)
        return shortest if shortest.num_uncomputed_tokens < oldest.num_uncomputed_tokens else None

    def _give_prompt(self, plan: StepPlan, request: Request, budget: int, now_s: float) -> bool:
        """Compute up to `budget` tokens of a prompt, seating it first if it waits. False: it didn't get in."""
        if request.status is RequestStatus.WAITING:
            return budget > 0 and self._seat(plan, request, budget, now_s)
        return self._give_tokens(plan, request, min(budget, self._chunk_limit(request), request.num_uncomputed_tokens))

    def _chunk_limit(self, request: Request) -> int:
        wants_logprobs = request.sampling.prompt_logprobs is not None
        return PROMPT_LOGPROBS_CHUNK if wants_logprobs else self._max_num_batched_tokens

    def _give_tokens(self, plan: StepPlan, request: Request, num_tokens: int) -> bool:
        """Allocate slots for a seated request, preempting worse ones as needed, itself last."""
        if num_tokens <= 0:
            return False
        while not self.kv.allocate_slots(request, num_tokens):
            victim = max(self.running, key=lambda r: r.rank)
            self._preempt(plan, victim)
            if victim is request:
                return False
        self._plan(plan, request, num_tokens)
        return True

    def _plan(self, plan: StepPlan, request: Request, num_tokens: int) -> None:
        plan.scheduled.append(ScheduledRequest(request, request.num_computed_tokens, num_tokens))
        plan.num_tokens += num_tokens

    # Seats -----------------------------------------------------------------------------------------------------------

    def _seat(self, plan: StepPlan, request: Request, budget: int, now_s: float) -> bool:
        """Give a waiting request a seat and its first chunk, if there is room for all it has to compute.

        Room for the whole prompt, and for what other seated prompts still lack, is asked for: prompts that hold half of
        their blocks and wait for each other would only preempt one another.
        """
        while self._num_seats + request.num_seats > self._max_num_seqs:
            if not self._preempt_for(plan, request):
                return False
        hit = self.kv.get_computed_blocks(request)
        num_tokens = min(request.num_tokens - hit.num_tokens, budget, self._chunk_limit(request))
        while not self._has_room(request, hit) or not self.kv.allocate_slots(request, num_tokens, hit):
            if not self._preempt_for(plan, request):
                return False
            hit = self.kv.get_computed_blocks(request)
            num_tokens = min(request.num_tokens - hit.num_tokens, budget, self._chunk_limit(request))
        self._take_seat(request, now_s)
        self._plan(plan, request, num_tokens)
        return True

    def _has_room(self, request: Request, hit: PrefixHit) -> bool:
        """Room for the whole prompt, beside what other seated prompts lack and one more block for everyone seated."""
        if not self.running:
            return True
        lacking = sum(self.kv.num_blocks_for(r, r.num_tokens) for r in self.running if r.num_uncomputed_tokens > 1)
        needed = self.kv.num_unheld_blocks(request, hit)
        return lacking + needed + len(self.running) <= self.kv.pool.num_available

    def _take_seat(self, request: Request, now_s: float) -> None:
        self.waiting.remove(request)
        self.running.append(request)
        self._num_seats += request.num_seats
        request.status = RequestStatus.RUNNING
        if request.first_seat_s is None:
            request.first_seat_s = now_s
            request.num_cached_tokens = request.num_computed_tokens
            if self.kv.caching_applies(request):
                self.counters.prefix_queries += request.num_tokens
                self.counters.prefix_hits += request.num_computed_tokens
        else:
            self.counters.num_recomputed_tokens += request.num_tokens - request.num_computed_tokens

    def _preempt_for(self, plan: StepPlan, request: Request) -> bool:
        """Take the seat of a request of strictly worse priority, if there is one."""
        victim = max(self.running, key=lambda r: r.rank, default=None)
        if victim is None or victim.rank.priority <= request.rank.priority:
            return False
        self._preempt(plan, victim)
        return True

    def _preempt(self, plan: StepPlan, victim: Request) -> None:
        for index, scheduled in enumerate(plan.scheduled):
            if scheduled.request is victim:
                plan.num_tokens -= scheduled.num_tokens
                del plan.scheduled[index]
                break
        plan.preempted.append(victim)
        self._leave_seat(victim)
        self.kv.free(victim)
        victim.status = RequestStatus.WAITING
        victim.num_preemptions += 1
        self.counters.num_preemptions += 1
        self.waiting.add(victim)

    def _leave_seat(self, request: Request) -> None:
        self.running.remove(request)
        self._num_seats -= request.num_seats

    # After a step ----------------------------------------------------------------------------------------------------

    def advance(self, plan: StepPlan) -> None:
        """The plan's tokens are computed now: count them, offer full blocks to the prefix cache, move windows on."""
        for scheduled in plan.scheduled:
            scheduled.request.num_computed_tokens = scheduled.start + scheduled.num_tokens
            self.kv.register_full_blocks(scheduled.request)
            self.kv.release_behind_windows(scheduled.request)

    def fork(self, request: Request, count: int) -> list[Request]:
        """Split a request whose prompt is computed into its `count` answers; the first is the request itself."""
        children = [self._child(request, index) for index in range(1, count)]
        self.running.extend(children)
        return [request, *children]

    def _child(self, parent: Request, index: int) -> Request:
        child = Request(
            request_id=parent.request_id,
            prompt_token_ids=parent.prompt_token_ids,
            sampling=parent.sampling,
            rank=parent.rank._replace(serial=parent.rank.serial + index),
            index=index,
            service_class=parent.service_class,
            cache_salt=parent.cache_salt,
            eos_token_ids=parent.eos_token_ids,
            max_tokens=parent.max_tokens,
            status=RequestStatus.RUNNING,
            num_cached_tokens=parent.num_cached_tokens,
            first_seat_s=parent.first_seat_s,
        )
        self.kv.fork(parent, child)
        return child

    def finish(self, request: Request, reason: FinishReason) -> None:
        """End a request, seated or waiting, and give back all it holds."""
        assert not request.is_finished, f"{request.request_id} finished twice"
        if request.status is RequestStatus.RUNNING:
            self._leave_seat(request)
        else:
            self.waiting.remove(request)
        self.kv.free(request)
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason

    def unfinished(self) -> Sequence[Request]:
        return [*self.running, *self.waiting]
