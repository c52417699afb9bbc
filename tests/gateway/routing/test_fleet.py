"""What the policies make of real traces, on a modelled fleet: the claims that the default policy rests on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandem.config.gateway_routing import PolicyName
from tandem.gateway.context import Goal
from tandem.gateway.routing.facts import PoolFacts
from tandem.perfmodel.priors import StepCost
from tests.gateway.routing.fleet import Arrival, EngineKind, Fleet, Report
from tests.gateway.routing.traces import azure_conversation, hot_prefixes, mooncake, with_batch

GOAL = Goal(ttft_s=1.0, tpot_s=0.05)
PAGED = EngineKind("paged", StepCost(12e-3, 60e-6, 80e-6, 2e-9), PoolFacts(2.0, has_priorities=True), count=2)
COMPILED = EngineKind("compiled", StepCost(7e-3, 36e-6, 50e-6, 2e-9), PoolFacts(2.0, "compiled", has_priorities=True))
SLOW = EngineKind("slow", StepCost(60e-3, 350e-6, 400e-6, 1e-8), PoolFacts(0.25, has_priorities=True), count=2)
MIXED = (PAGED, COMPILED, SLOW)
COUNT = 900


def run(policy: PolicyName, arrivals: list[Arrival], kinds: tuple[EngineKind, ...] = MIXED) -> Report:
    return Fleet(kinds, policy, goal=GOAL).run(arrivals)


@pytest.mark.parametrize("load", [1.0, 3.0, 5.0])
def test_on_a_mixed_fleet_hybrid_meets_more_goals_for_less(load: float) -> None:
    """Azure conversation trace, 30 % of it batch; from light load to more than the fast replicas can serve."""
    arrivals = with_batch(azure_conversation(COUNT, seconds_per_second=load), 0.3)
    hybrid = run("hybrid", arrivals)
    for name in ("round-robin", "least-loaded"):
        other = run(name, arrivals)
        assert hybrid.attainment("interactive") >= other.attainment("interactive"), name
        assert hybrid.busy_cost < other.busy_cost, name
    assert hybrid.attainment("batch") == 1.0
    if load < 5.0:
        assert hybrid.attainment("interactive") > 0.9


def test_on_prompts_that_begin_alike_too() -> None:
    arrivals = with_batch(mooncake(COUNT, seconds_per_second=2.0), 0.3)
    hybrid = run("hybrid", arrivals)
    for name in ("round-robin", "least-loaded"):
        other = run(name, arrivals)
        assert hybrid.attainment("interactive") >= other.attainment("interactive"), name
        assert hybrid.busy_cost < other.busy_cost, name


def test_engines_that_do_not_tell_their_steps_are_learnt_from_answers() -> None:
    silent = tuple(replace(kind, tells_steps=False) for kind in MIXED)
    arrivals = with_batch(azure_conversation(COUNT, seconds_per_second=2.0), 0.3)
    hybrid, other = run("hybrid", arrivals, silent), run("least-loaded", arrivals, silent)
    assert hybrid.attainment("interactive") >= other.attainment("interactive")
    assert hybrid.busy_cost < other.busy_cost


@pytest.mark.parametrize("policy", ["prefix-affinity", "hybrid"])
@pytest.mark.parametrize("hot_share", [0.25, 0.6, 0.95])
def test_affinity_never_ends_slower_than_round_robin(policy: PolicyName, hot_share: float) -> None:
    """Equal replicas near their limit, most prompts beginning alike: where affinity without regard to load piles up.

    Field notes: aibrix #842, sglang #14532.
    """
    kinds = (EngineKind("p", StepCost(12e-3, 100e-6, 80e-6, 0.0), PoolFacts(1.0), count=4, kv_tokens=60_000),)
    arrivals = hot_prefixes(1500, rate=45.0, num_prefixes=20, hot_share=hot_share)
    affine, turns = run(policy, arrivals, kinds), run("round-robin", arrivals, kinds)
    assert max(job.end_s for job in affine.jobs) <= max(job.end_s for job in turns.jobs) + 1.0
    if policy == "prefix-affinity":
        assert affine.mean_latency_s() <= 1.02 * turns.mean_latency_s()
        assert affine.p99_ttft_s() <= 1.1 * turns.p99_ttft_s()
    assert affine.attainment("interactive") >= turns.attainment("interactive")
    assert sum(job.cached for job in affine.jobs) >= 0.98 * sum(job.cached for job in turns.jobs)


def test_affinity_saves_work_where_memory_is_short() -> None:
    """Twenty beginnings that no replica can hold all of: whoever gets each to its own replica computes less."""
    kinds = (EngineKind("p", StepCost(12e-3, 100e-6, 80e-6, 0.0), PoolFacts(1.0), count=4, kv_tokens=12_000),)
    arrivals = hot_prefixes(1500, rate=30.0, num_prefixes=40, hot_share=0.05)
    affine, turns = run("prefix-affinity", arrivals, kinds), run("round-robin", arrivals, kinds)
    assert sum(job.cached for job in affine.jobs) > 1.2 * sum(job.cached for job in turns.jobs)


def test_co_serving_fills_the_slack_without_spoiling_the_goal() -> None:
    """Interactive load at half of the knee, which is at 1.2 times the trace, and a batch backlog without end."""
    kinds = (EngineKind("p", StepCost(12e-3, 60e-6, 80e-6, 2e-9), PoolFacts(1.0, has_priorities=True)),)
    interactive = azure_conversation(600, seconds_per_second=0.6)
    span_s = interactive[-1].time_s
    backlog = [Arrival(0.0, 600, 150, "batch") for _ in range(2500)]
    alone = run("hybrid", interactive, kinds)
    together = run("hybrid", sorted(interactive + backlog, key=lambda a: a.time_s), kinds)
    assert together.attainment("interactive") >= alone.attainment("interactive") - 0.01
    done = sum(j.context.prompt_tokens + j.output_tokens for j in together.jobs if j.end_s <= span_s)
    assert done >= 2 * alone.tokens


def test_a_run_can_be_repeated() -> None:
    arrivals = hot_prefixes(200, rate=20.0, num_prefixes=5, hot_share=0.5)
    first, second = (run("hybrid", arrivals) for _ in range(2))
    assert (first.busy_cost, first.p99_ttft_s(), first.by_pool) == (
        second.busy_cost,
        second.p99_ttft_s(),
        second.by_pool,
    )
