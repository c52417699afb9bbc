"""A fleet of modelled replicas under a trace, event by event: what would each routing policy make of this load?

The policies, `Room`, the step-time fit and the scores are the gateway's own; only engines and time are models. An
engine here makes steps as ours does: one token for every running answer, the rest of the budget for prompts,
interactive ones first; its step takes what its true `StepCost` says, with noise. Everything is drawn from one seed.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from prometheus_client import CollectorRegistry

from tandem.config.gateway_routing import PolicyName, RoutingConfig
from tandem.core.types import ServiceClass
from tandem.gateway.context import Caller, Goal, RequestContext
from tandem.gateway.replicas.pool import Pool
from tandem.gateway.replicas.replica import Replica, Signals
from tandem.gateway.routing.base import Decision
from tandem.gateway.routing.coserving import Room
from tandem.gateway.routing.facts import PoolFacts
from tandem.gateway.routing.policies import PolicyParts, make_policy
from tandem.gateway.routing.predictions import Outcome, PredictionScores, met_goal
from tandem.gateway.routing.replica_models import ReplicaModels
from tandem.perfmodel.priors import StepCost

SCRAPE_S = 1.0
BLOCK = 16


@dataclass(frozen=True, slots=True)
class EngineKind:
    """Replicas of one pool, as they truly are."""

    pool: str
    cost: StepCost
    facts: PoolFacts
    count: int = 1
    max_num_seqs: int = 64
    token_budget: int = 2048
    kv_tokens: int = 400_000
    tells_steps: bool = True


@dataclass(frozen=True, slots=True)
class Arrival:
    time_s: float
    prompt_tokens: int
    output_tokens: int
    service_class: ServiceClass = "interactive"
    hashes: tuple[bytes, ...] = ()
    session: str | None = None


@dataclass(slots=True, eq=False)
class Job:
    """One request on its way."""

    context: RequestContext
    output_tokens: int
    """Those it will really have."""
    decision: Decision | None = None
    sent_s: float = 0.0
    uncached: int = 0
    cached: int = 0
    first_s: float | None = None
    end_s: float = 0.0

    def __lt__(self, other: Job) -> bool:
        return self._rank() < other._rank()

    def _rank(self) -> tuple[bool, float]:
        return self.context.service_class == "batch", self.context.arrived_s


class Engine:
    """One modelled replica."""

    def __init__(self, kind: EngineKind, replica: Replica, rng: random.Random) -> None:
        self.kind = kind
        self.replica = replica
        self.busy_s = 0.0
        self.is_stepping = False
        self._rng = rng
        self._waiting: list[Job] = []
        self._prefilling: deque[Job] = deque()
        self._decoding: list[tuple[int, int, Job]] = []
        """(the step it ends with, tie-breaker, job)."""
        self._ties = itertools.count()
        self._num_steps = 0
        self._held_tokens = 0
        self._cache: OrderedDict[bytes, None] = OrderedDict()
        self._recent: deque[tuple[float, int, int]] = deque(maxlen=128)
        self._planned: list[Job] = []

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._prefilling or self._decoding)

    def add(self, job: Job) -> None:
        heapq.heappush(self._waiting, job)

    def begin_step(self) -> float:
        """Plan a step; how long it takes."""
        self._seat()
        budget = self.kind.token_budget - len(self._decoding)
        num_tokens, num_seqs = len(self._decoding), len(self._decoding)
        self._planned = []
        while self._prefilling and budget > 0:
            job = self._prefilling[0]
            chunk = min(budget, job.uncached)
            job.uncached -= chunk
            budget, num_tokens, num_seqs = budget - chunk, num_tokens + chunk, num_seqs + 1
            if job.uncached > 0:
                break
            self._planned.append(self._prefilling.popleft())
        base, token, sequence, context = self.kind.cost
        exact = base + token * num_tokens + sequence * num_seqs + context * self._held_tokens
        step_s = exact * self._rng.lognormvariate(0.0, 0.05)
        self.busy_s += step_s
        self._recent.append((step_s, num_tokens, num_seqs))
        return step_s

    def end_step(self, now_s: float) -> tuple[list[Job], list[Job]]:
        """(jobs with their first token, jobs that are done)."""
        self._num_steps += 1
        first = self._planned
        for job in first:
            job.first_s = now_s
            heapq.heappush(self._decoding, (self._num_steps + job.output_tokens - 1, next(self._ties), job))
        done = []
        while self._decoding and self._decoding[0][0] <= self._num_steps:
            job = heapq.heappop(self._decoding)[2]
            job.end_s = now_s
            self._held_tokens -= job.context.prompt_tokens + job.output_tokens
            done.append(job)
        return first, done

    def signals(self, now_s: float) -> Signals:
        running = len(self._decoding) + len(self._prefilling)
        return Signals(
            taken_s=now_s,
            running=running,
            waiting=len(self._waiting),
            kv_usage=min(1.0, self._held_tokens / self.kind.kv_tokens),
            block_size=BLOCK,
            blocks_total=self.kind.kv_tokens // BLOCK,
            max_num_seqs=self.kind.max_num_seqs,
            steps=tuple(self._recent) if self.kind.tells_steps else (),
        )

    def _seat(self) -> None:
        while self._waiting and len(self._decoding) + len(self._prefilling) < self.kind.max_num_seqs:
            job = self._waiting[0]
            tokens = job.context.prompt_tokens + job.output_tokens
            if self._held_tokens and self._held_tokens + tokens > self.kind.kv_tokens:
                return
            heapq.heappop(self._waiting)
            self._held_tokens += tokens
            self._look_up(job)
            self._prefilling.append(job)

    def _look_up(self, job: Job) -> None:
        """Of the prefix cache: what is there, and remember the rest. Room for it is what requests leave."""
        hashes, prompt = job.context.prefix_hashes, job.context.prompt_tokens
        hits = next((i for i, name in enumerate(hashes) if name not in self._cache), len(hashes))
        job.cached = min(prompt * hits // max(1, len(hashes)), prompt - 1)
        job.uncached = prompt - job.cached
        for name in reversed(hashes):
            self._cache[name] = None
            self._cache.move_to_end(name)
        per_chunk = max(1, prompt // max(1, len(hashes)))
        while len(self._cache) * per_chunk > self.kind.kv_tokens:
            self._cache.popitem(last=False)


@dataclass(slots=True)
class Report:
    """How a policy did."""

    policy: str
    jobs: list[Job]
    busy_cost: float
    """Price x engine-busy hours."""
    by_pool: dict[str, int] = field(default_factory=dict)

    def of(self, service_class: ServiceClass) -> list[Job]:
        return [job for job in self.jobs if job.context.service_class == service_class]

    def attainment(self, service_class: ServiceClass) -> float:
        jobs = self.of(service_class)
        return sum(bool(met_goal(job.context, outcome(job, from_arrival=True))) for job in jobs) / max(1, len(jobs))

    def p99_ttft_s(self, service_class: ServiceClass = "interactive") -> float:
        times = sorted((job.first_s or 0.0) - job.context.arrived_s for job in self.of(service_class))
        return times[int(0.99 * (len(times) - 1))] if times else 0.0

    def mean_latency_s(self) -> float:
        return fmean(job.end_s - job.context.arrived_s for job in self.jobs)

    @property
    def tokens(self) -> int:
        return sum(job.context.prompt_tokens + job.output_tokens for job in self.jobs)

    @property
    def cost_per_million(self) -> float:
        return self.busy_cost / self.tokens * 1e6


def outcome(job: Job, *, from_arrival: bool = False) -> Outcome:
    start_s = job.context.arrived_s if from_arrival else job.sent_s
    assert job.first_s is not None, "it has ended"
    decode_s = job.end_s - job.first_s
    return Outcome(
        ttft_s=job.first_s - start_s,
        tpot_s=decode_s / (job.output_tokens - 1) if job.output_tokens > 1 else None,
        finish_s=job.end_s - start_s,
        prompt_tokens=job.context.prompt_tokens,
        cached_tokens=job.cached,
        output_tokens=job.output_tokens,
    )


class Fleet:
    """Replicas of all kinds behind one gateway with one policy. `run` once."""

    def __init__(
        self,
        kinds: Sequence[EngineKind],
        policy: PolicyName,
        *,
        goal: Goal,
        deadline_s: float = 3600.0,
        config: RoutingConfig | None = None,
        seed: int = 0,
    ) -> None:
        rng = random.Random(seed)
        routing = config or RoutingConfig(policy=policy, slow_start_s=0.0)
        self.parts = PolicyParts.of(routing, ReplicaModels({kind.pool: kind.facts for kind in kinds}))
        self.policy = make_policy(self.parts)
        self.room = Room(self.parts.models, routing, goal)
        self.scores = PredictionScores(self.parts.models, self.parts.index, CollectorRegistry())
        self.engines = [Engine(kind, replica, rng) for kind in kinds for replica in _replicas(kind)]
        self._replicas = [engine.replica for engine in self.engines]
        self._engine_of = {engine.replica.id: engine for engine in self.engines}
        self._goals: dict[ServiceClass, Goal] = {"interactive": goal, "batch": Goal(deadline_s=deadline_s)}
        self._queues: dict[ServiceClass, deque[Job]] = {"interactive": deque(), "batch": deque()}
        self._events: list[tuple[float, int, Engine | None]] = []
        self._ties = itertools.count()
        self._done: list[Job] = []

    def run(self, arrivals: Iterable[Arrival]) -> Report:
        """Until everything has been answered: the earliest event, what it causes, and on."""
        pending = deque(self._jobs(arrivals))
        total = len(pending)
        heapq.heappush(self._events, (0.0, next(self._ties), None))
        while len(self._done) < total:
            if pending and (not self._events or pending[0].context.arrived_s <= self._events[0][0]):
                job = pending.popleft()
                self._arrive(job, job.context.arrived_s)
                continue
            now_s, _, engine = heapq.heappop(self._events)
            if engine is None:
                self._scrape(now_s)
            else:
                self._end_step(engine, now_s)
        return self._report()

    def _jobs(self, arrivals: Iterable[Arrival]) -> Iterator[Job]:
        for number, arrival in enumerate(arrivals):
            context = make_context(
                arrival.prompt_tokens, arrival.output_tokens, arrival.service_class, self._goals[arrival.service_class],
                arrived_s=arrival.time_s, hashes=arrival.hashes, session=arrival.session, name=str(number),
            )  # fmt: skip
            yield Job(context, arrival.output_tokens)

    def _arrive(self, job: Job, now_s: float) -> None:
        self._queues[job.context.service_class].append(job)
        self._place(now_s)

    def _place(self, now_s: float) -> None:
        """Whoever can go, interactive first; as the waiting rooms do."""
        for queue in self._queues.values():
            while queue and self._send(queue[0], now_s):
                queue.popleft()

    def _send(self, job: Job, now_s: float) -> bool:
        context = job.context
        decision = self.policy.choose(context, self.room.available(context, self._replicas, now_s), now_s)
        if decision is None:
            return False
        replica = decision.replica
        job.decision, job.sent_s = decision, now_s
        replica.in_flight += 1
        replica.in_flight_by_class[context.service_class] += 1
        replica.in_flight_prompt_tokens += context.prompt_tokens
        self.policy.sent(context, replica)
        engine = self._engine_of[replica.id]
        engine.add(job)
        self._begin_step(engine, now_s)
        return True

    def _begin_step(self, engine: Engine, now_s: float) -> None:
        if not engine.is_stepping and engine.has_work:
            engine.is_stepping = True
            heapq.heappush(self._events, (now_s + engine.begin_step(), next(self._ties), engine))

    def _end_step(self, engine: Engine, now_s: float) -> None:
        engine.is_stepping = False
        first, done = engine.end_step(now_s)
        for job in first:
            engine.replica.in_flight_prompt_tokens -= job.context.prompt_tokens
        for job in done:
            assert job.decision is not None
            self.scores.ended(job.context, job.decision, outcome(job))
            engine.replica.in_flight -= 1
            engine.replica.in_flight_by_class[job.context.service_class] -= 1
            self._done.append(job)
        self._begin_step(engine, now_s)
        if done:
            self._place(now_s)

    def _scrape(self, now_s: float) -> None:
        for engine in self.engines:
            engine.replica.signals = engine.signals(now_s)
            engine.replica.in_flight_when_scraped = engine.replica.in_flight
        self._place(now_s)
        heapq.heappush(self._events, (now_s + SCRAPE_S, next(self._ties), None))

    def _report(self) -> Report:
        cost = sum(engine.busy_s * engine.kind.facts.price_per_hour / 3600.0 for engine in self.engines)
        by_pool: dict[str, int] = {}
        for job in self._done:
            assert job.decision is not None
            name = job.decision.replica.pool.name
            by_pool[name] = by_pool.get(name, 0) + 1
        return Report(self.policy.name, self._done, cost, by_pool)


def make_context(
    prompt_tokens: int = 100,
    output_tokens: int = 100,
    service_class: ServiceClass = "interactive",
    goal: Goal | None = None,
    *,
    arrived_s: float = 0.0,
    hashes: tuple[bytes, ...] = (),
    session: str | None = None,
    name: str = "r",
    model: str = "m",
    caller: Caller | None = None,
    body: bytes = b"",
) -> RequestContext:
    """A request as the policies see it."""
    return RequestContext(
        request_id=name, client_request_id=None, endpoint="/v1/chat/completions", caller=caller or Caller(),
        service_class=service_class, goal=goal or Goal(), model=model, body=body, is_stream=True, wants_usage=False,
        num_answers=1, max_output_tokens=None, arrived_s=arrived_s, prompt_bytes=4 * prompt_tokens,
        prompt_tokens=prompt_tokens, output_tokens=output_tokens, session=session, prefix_hashes=hashes,
    )  # fmt: skip


def make_replicas(count: int, *, pool: Pool | None = None, state: str = "up") -> list[Replica]:
    """Replicas with nothing to do, up for long."""
    pool = pool or Pool(name="p", model="m", engine="tandem")
    made = [pool.make_replica(f"http://host{number:02}:1", f"{pool.name}/{number:02}") for number in range(count)]
    for replica in made:
        replica.state = state  # type: ignore[assignment]
        replica.up_since_s = -1e6
    return made


def _replicas(kind: EngineKind) -> list[Replica]:
    return make_replicas(kind.count, pool=Pool(name=kind.pool, model="m", engine="tandem"))
