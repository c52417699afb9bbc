"""The default policy's rules, one test each, on replicas whose step times are known."""

from __future__ import annotations

import pytest

from tandem.config.gateway_routing import RoutingConfig
from tandem.gateway.context import Goal
from tandem.gateway.replicas.pool import Pool
from tandem.gateway.replicas.replica import Replica, Signals
from tandem.gateway.routing.base import Decision
from tandem.gateway.routing.facts import PoolFacts
from tandem.gateway.routing.hybrid import Hybrid
from tandem.gateway.routing.policies import PolicyParts, make_policy
from tandem.gateway.routing.replica_models import ReplicaModels
from tandem.perfmodel.priors import StepCost
from tests.gateway.routing.fleet import make_context, make_replicas

PAGED = StepCost(10e-3, 60e-6, 100e-6, 0.0)
COMPILED = StepCost(6e-3, 30e-6, 50e-6, 0.0)
SLOW = StepCost(60e-3, 400e-6, 400e-6, 0.0)
INTERACTIVE = Goal(ttft_s=1.0, tpot_s=0.05)
BATCH = Goal(deadline_s=3600.0)


class Fleet:
    """Pools of replicas whose models have seen many exact steps."""

    def __init__(self, **pools: tuple[StepCost, PoolFacts, int]) -> None:
        self.parts = PolicyParts(models=ReplicaModels({name: facts for name, (_, facts, _) in pools.items()}))
        self.policy = make_policy(self.parts)
        self.replicas: list[Replica] = []
        for name, (cost, _, count) in pools.items():
            made = make_replicas(count, pool=Pool(name=name, model="m"))
            self.replicas += made
            for replica in made:
                self.teach(replica, cost)

    def teach(self, replica: Replica, cost: StepCost) -> None:
        steps = self.parts.models.of(replica).steps
        for n in range(1, 200):
            tokens = n % 40 + (0 if n % 4 else 400)
            steps.observe_step(cost.base_s + cost.token_s * tokens + cost.sequence_s * (n % 40), tokens, n % 40)

    def choose(self, goal: Goal = INTERACTIVE, **request: object) -> Decision:
        service_class = "interactive" if goal.ttft_s else "batch"
        context = make_context(goal=goal, service_class=service_class, **request)  # type: ignore[arg-type]
        decision = self.policy.choose(context, self.replicas, 0.0)
        assert decision is not None
        return decision

    def __getitem__(self, replica_id: str) -> Replica:
        return next(replica for replica in self.replicas if replica.id == replica_id)


def mixed(paged_price: float = 2.0, compiled_price: float = 2.0) -> Fleet:
    return Fleet(
        paged=(PAGED, PoolFacts(price_per_hour=paged_price), 2),
        compiled=(COMPILED, PoolFacts(price_per_hour=compiled_price, kind="compiled"), 1),
    )


def test_the_cheapest_that_meets_the_goal() -> None:
    decision = mixed().choose()
    assert decision.replica.id == "compiled/00", "equal price, half the engine seconds"
    assert decision.reason == "the cheapest that meets the goal"
    assert mixed(compiled_price=5.0).choose().replica.pool.name == "paged"


def test_a_decision_explains_itself() -> None:
    fleet = mixed()
    decision = fleet.choose(prompt_tokens=1000, output_tokens=200)
    assert [c.replica_id for c in decision.candidates] == ["paged/00", "paged/01", "compiled/00"]
    assert decision.predicted is decision.candidates[2]
    paged, _, compiled = decision.candidates
    assert paged.meets_goal is compiled.meets_goal is True
    assert paged.ttft_s == pytest.approx(2 * 10e-3 + 1000 * 60e-6, rel=0.1), "two steps of 512"
    assert paged.tpot_s == pytest.approx(10.16e-3, rel=0.1)
    assert paged.finish_s == pytest.approx((paged.ttft_s or 0) + 199 * (paged.tpot_s or 0), rel=0.01)
    assert paged.engine_s == pytest.approx(1000 * 60e-6 + 200 * 10.16e-3, rel=0.1)
    assert (paged.cost_micros or 0) > (compiled.cost_micros or 0) > 0


def test_a_burst_spills_over_to_what_still_meets_the_goal() -> None:
    fleet = mixed()
    fleet["compiled/00"].in_flight, fleet["compiled/00"].in_flight_prompt_tokens = 30, 40_000
    decision = fleet.choose()
    assert decision.replica.pool.name == "paged"
    assert decision.candidates[2].meets_goal is False


def test_bulk_takes_the_cheapest_tokens_although_they_are_slow() -> None:
    fleet = Fleet(
        fast=(COMPILED, PoolFacts(price_per_hour=8.0, kind="compiled"), 1),
        slow=(SLOW, PoolFacts(price_per_hour=0.2), 1),
    )
    assert fleet.choose(BATCH).replica.id == "slow/00"
    assert fleet.choose(INTERACTIVE).replica.id == "fast/00", "60 ms a token is past the goal of 50"
    assert fleet.choose(Goal(deadline_s=5.0)).replica.id == "fast/00", "so is 200 tokens in 5 s"


def test_at_equal_cost_sessions_go_to_paged_and_bulk_to_compiled() -> None:
    fleet = Fleet(
        compiled=(PAGED, PoolFacts(price_per_hour=1.0, kind="compiled"), 1),
        paged=(PAGED, PoolFacts(price_per_hour=1.0), 1),
    )
    assert fleet.choose(INTERACTIVE).replica.id == "paged/00"
    assert fleet.choose(BATCH).replica.id == "compiled/00"


def test_none_meets_the_goal_then_the_nearest_to_it() -> None:
    fleet = mixed()
    for number, replica in enumerate(fleet.replicas):
        replica.in_flight, replica.in_flight_prompt_tokens = 40, 100_000 * (3 - number)
    decision = fleet.choose()
    assert decision.replica.id == "compiled/00"
    assert decision.reason == "the soonest: none meets the goal"
    assert not any(candidate.meets_goal for candidate in decision.candidates)


def test_what_a_request_has_waited_is_gone() -> None:
    fleet = mixed()
    context = make_context(1000, goal=INTERACTIVE, arrived_s=0.0)
    early, late = (fleet.policy.choose(context, fleet.replicas, now_s) for now_s in (0.0, 0.99))
    assert early is not None
    assert late is not None
    assert early.candidates[0].meets_goal is True
    assert late.candidates[0].meets_goal is False


def test_a_cached_prefix_is_worth_what_it_saves() -> None:
    fleet = Fleet(paged=(PAGED, PoolFacts(price_per_hour=1.0), 3))
    hashes = tuple(f"{i}".encode() for i in range(10))
    request = make_context(4000, goal=INTERACTIVE, hashes=hashes)
    fleet.policy.sent(request, fleet["paged/01"])
    decision = fleet.choose(prompt_tokens=4000, hashes=hashes)
    assert decision.replica.id == "paged/01"
    assert decision.predicted is not None
    assert decision.predicted.hit_tokens == 3999, "the last token is always computed"
    fleet["paged/01"].in_flight, fleet["paged/01"].in_flight_prompt_tokens = 30, 40_000
    assert fleet.choose(prompt_tokens=4000, hashes=hashes).replica.id != "paged/01", "but the queue there is too long"


def test_full_seats_and_full_memory_make_a_request_wait() -> None:
    fleet = mixed()
    idle = fleet.choose().candidates[2].ttft_s or 0.0
    compiled = fleet["compiled/00"]
    compiled.in_flight = 16
    compiled.signals = Signals(taken_s=0.0, max_num_seqs=16)
    assert (fleet.choose().candidates[2].ttft_s or 0.0) > idle + 0.05
    compiled.in_flight = 4
    compiled.signals = Signals(taken_s=0.0, max_num_seqs=16, kv_usage=0.99, block_size=16, blocks_total=100)
    assert (fleet.choose(prompt_tokens=500).candidates[2].ttft_s or 0.0) > idle + 0.05


def test_waiting_batch_prompts_do_not_hold_up_interactive_ones_where_engines_have_priorities() -> None:
    for has_priorities in (True, False):
        fleet = Fleet(p=(PAGED, PoolFacts(price_per_hour=1.0, has_priorities=has_priorities), 1))
        replica = fleet["p/00"]
        replica.in_flight, replica.in_flight_prompt_tokens = 10, 50_000
        replica.in_flight_by_class["batch"] = 10
        assert fleet.choose().candidates[0].meets_goal is has_priorities


def test_prompts_that_keep_coming_slow_the_answers_down() -> None:
    fleet = mixed()
    calm = fleet.choose().candidates[0].tpot_s or 0.0
    for _ in range(40):
        fleet.policy.sent(make_context(2000, arrived_s=0.0), fleet["paged/00"])
    assert (fleet.choose().candidates[0].tpot_s or 0.0) > 1.5 * calm


def test_a_new_replica_is_tried_by_a_few_and_then_judged() -> None:
    fleet = Fleet(compiled=(COMPILED, PoolFacts(price_per_hour=1.0), 1), new=(PAGED, PoolFacts(price_per_hour=1.0), 0))
    (new,) = make_replicas(1, pool=Pool(name="new", model="m"))
    fleet.replicas.append(new)
    for count in range(2):
        decision = fleet.choose()
        assert decision.replica is new, decision.reason
        new.in_flight = count + 1
    assert fleet.choose().replica.id == "compiled/00", "two are enough until something is known"
    new.in_flight = 0
    fleet.teach(new, SLOW)
    assert fleet.choose().replica.id == "compiled/00"


def test_free_pools_go_by_the_goal_alone() -> None:
    fleet = Fleet(a=(PAGED, PoolFacts(), 1), b=(COMPILED, PoolFacts(), 1))
    assert fleet.choose().replica.id == "b/00"


def test_headroom_keeps_a_distance_from_the_goal() -> None:
    fleet = Fleet(p=(PAGED, PoolFacts(), 1))
    goal = Goal(ttft_s=0.09)
    near = Hybrid(fleet.parts.models, fleet.parts.index, RoutingConfig(headroom=1.0))
    decision = near.choose(make_context(1000, goal=goal), fleet.replicas, 0.0)
    assert decision is not None
    assert decision.candidates[0].meets_goal is True
    assert fleet.choose(Goal(ttft_s=0.09), prompt_tokens=1000).candidates[0].meets_goal is False
