"""Which replicas have room, and what batch work leaves to interactive traffic."""

from __future__ import annotations

import pytest

from tandem.config.deployment import PoolConfig
from tandem.config.gateway_routing import RoutingConfig
from tandem.gateway.context import Goal
from tandem.gateway.replicas.pool import Pool
from tandem.gateway.replicas.replica import Replica, Signals
from tandem.gateway.routing.coserving import Room
from tandem.gateway.routing.facts import PoolFacts, facts_of
from tandem.gateway.routing.replica_models import Known, ReplicaModels, capacity
from tests.gateway.routing.fleet import make_context, make_replicas

GOAL = Goal(ttft_s=1.0, tpot_s=0.05)


def make_room(*, facts: PoolFacts | None = None, goal: Goal = GOAL, **config: object) -> tuple[Room, ReplicaModels]:
    models = ReplicaModels({"p": facts or PoolFacts(max_concurrency=8)})
    return Room(models, RoutingConfig(**config), goal), models  # type: ignore[arg-type]


def teach(known: Known, base_s: float, each_s: float) -> None:
    for n in range(1, 120):
        known.steps.observe_step(base_s + each_s * (n % 30 + 1), n % 30 + 1, n % 30 + 1)


def ids(replicas: list[Replica]) -> list[str]:
    return [replica.id for replica in replicas]


def test_full_excluded_ejected_and_absent_replicas_are_left_out_and_said_why() -> None:
    room, _ = make_room()
    replicas = make_replicas(7)
    replicas[0].in_flight = 8
    replicas[1].ejected_until_s = 60.0
    replicas[2].state, replicas[2].reason = "down", "connection refused"
    replicas[3].trial_limit, replicas[3].in_flight = 1, 1
    replicas[4].state = "starting"
    request = make_context()
    request.excluded.add("p/05")
    assert ids(room.available(request, replicas, 10.0)) == ["p/06"]
    assert ids(room.usable(request, replicas, 10.0)) == ["p/00", "p/03", "p/05", "p/06"]
    assert [room.why_not(request, replica, 10.0) for replica in replicas] == [
        "full",
        "ejected for 50 s more",
        "down: connection refused",
        "full",
        "starting",
        "failed this request before",
        None,
    ]


def test_capacity_is_a_quarter_over_the_seats_unless_said() -> None:
    (replica,) = make_replicas(1)
    assert capacity(replica, PoolFacts()) == 128
    replica.signals = Signals(taken_s=0.0, max_num_seqs=16)
    assert capacity(replica, PoolFacts()) == 20
    assert capacity(replica, PoolFacts(max_concurrency=5)) == 5


def test_a_new_replica_gets_its_share_slowly_unless_all_are_new() -> None:
    room, _ = make_room(facts=PoolFacts(max_concurrency=20), slow_start_s=10.0)
    old, new = make_replicas(2)
    old.up_since_s, new.up_since_s = -100.0, 0.0
    allowed = []
    for now_s in (0.0, 2.5, 5.0, 10.0):
        new.in_flight = 0
        while new in room.available(make_context(), [old, new], now_s):
            new.in_flight += 1
        allowed.append(new.in_flight)
    assert allowed == [2, 5, 10, 20]
    new.in_flight = 15
    assert room.available(make_context(), [new], 0.0) == [new]


def test_batch_never_takes_the_last_places() -> None:
    room, _ = make_room(goal=Goal(), interactive_reserve=0.25)
    (replica,) = make_replicas(1)
    batch, interactive = make_context(service_class="batch"), make_context()
    replica.in_flight = 5
    assert room.available(batch, [replica], 0.0)
    replica.in_flight = 6
    assert not room.available(batch, [replica], 0.0)
    assert room.available(interactive, [replica], 0.0)


def test_batch_is_let_in_while_the_predicted_step_stays_under_its_share_of_the_goal() -> None:
    room, models = make_room(facts=PoolFacts(max_concurrency=100), batch_tpot_share=0.6)
    (replica,) = make_replicas(1)
    teach(models.of(replica), 10e-3, 1e-3)
    batch = make_context(service_class="batch")
    while replica.in_flight < 60 and room.available(batch, [replica], 0.0):
        replica.in_flight += 1
    assert replica.in_flight == 20, "10 ms + 20 x 1 ms are 0.6 x 50 ms"
    for _ in range(30):
        models.of(replica).sent(make_context(2000, service_class="interactive"), 0)
    replica.in_flight = 15
    assert not room.available(batch, [replica], 0.0), "prompts take time too"
    assert room.available(batch, [replica], 60.0), "and have ended by now"


def test_what_can_never_meet_the_interactive_goal_belongs_to_batch() -> None:
    room, models = make_room()
    (replica,) = make_replicas(1)
    teach(models.of(replica), 80e-3, 1e-3)
    replica.in_flight = 7
    assert room.available(make_context(service_class="batch"), [replica], 0.0)
    replica.in_flight_by_class["interactive"] = 1
    assert not room.available(make_context(service_class="batch"), [replica], 0.0), "unless interactive is there"


def test_a_pool_for_batch_alone_is_filled() -> None:
    room, _ = make_room(facts=PoolFacts(max_concurrency=8, takes_interactive=False))
    (replica,) = make_replicas(1)
    replica.in_flight = 7
    assert room.available(make_context(service_class="batch"), [replica], 0.0)


@pytest.mark.parametrize(
    ("service_class", "expected"), [("interactive", ["fine/00"]), ("batch", ["fine/00", "int4/00"])]
)
def test_a_class_never_gets_a_precision_that_it_does_not_accept(service_class: str, expected: list[str]) -> None:
    models = ReplicaModels({"fine": PoolFacts(precision="bfloat16"), "int4": PoolFacts(precision="int4")})
    room = Room(models, RoutingConfig(precisions_interactive=("bfloat16",)), GOAL)
    replicas = [make_replicas(1, pool=Pool(name=name, model="m"))[0] for name in ("fine", "int4")]
    request = make_context(service_class=service_class)  # type: ignore[arg-type]
    assert ids(room.available(request, replicas, 0.0)) == expected
    assert ids(room.usable(request, replicas, 0.0)) == expected
    if len(expected) == 1:
        assert room.why_not(request, replicas[1], 0.0) == "interactive requests don't accept its precision"


def test_facts_come_from_the_configuration_or_from_the_pool_itself() -> None:
    config = PoolConfig(
        name="c", model="x.engine", devices=("cpu:0-1",), price_per_hour=0.5, precision="int4", roles=("batch",),
        max_concurrency=9,
    )  # fmt: skip
    assert facts_of(config) == PoolFacts(0.5, "compiled", "int4", "cpu", 9, False, True)
    (replica,) = make_replicas(1, pool=Pool(name="flag", model="m", engine="vllm", price_per_hour=2.0))
    assert ReplicaModels().of(replica).facts == PoolFacts(2.0)
