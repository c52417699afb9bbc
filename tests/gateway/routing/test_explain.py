"""`GET /tandem/route`: the decision and its reasons, without sending anything and without the prompt."""

from __future__ import annotations

import msgspec
import pytest

from tandem.config.gateway_routing import RoutingConfig
from tandem.gateway.context import Goal
from tandem.gateway.routing.coserving import Room
from tandem.gateway.routing.explain import RouteExplanation, explain
from tandem.gateway.routing.facts import PoolFacts
from tandem.gateway.routing.policies import POLICIES, PolicyParts
from tandem.gateway.routing.replica_models import ReplicaModels
from tests.gateway.routing.fleet import make_context, make_replicas

GOAL = Goal(ttft_s=1.0, tpot_s=0.05)


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_explains_itself(name: str) -> None:
    parts = PolicyParts(models=ReplicaModels({"p": PoolFacts(price_per_hour=1.0, max_concurrency=4)}))
    policy, room = POLICIES[name](parts), Room(parts.models, RoutingConfig(), GOAL)  # type: ignore[index]
    replicas = make_replicas(4)
    replicas[1].state, replicas[1].reason = "down", "connection refused"
    replicas[2].in_flight = 4
    request = make_context(1000, 300, goal=GOAL, body=b"a secret prompt")
    body = msgspec.json.encode(explain(policy, room, request, replicas, 0.0))
    assert b"secret" not in body
    told = msgspec.json.decode(body, type=RouteExplanation)
    assert (told.policy, told.model, told.service_class) == (name, "m", "interactive")
    assert (told.prompt_tokens, told.output_tokens, told.goal.ttft_s) == (1000, 300, 1.0)
    assert [c.why_not for c in told.candidates] == [None, "down: connection refused", "full", None]
    assert [c.replica for c in told.candidates if c.is_chosen] == [told.chosen]
    assert told.chosen in ("p/00", "p/03")
    assert told.reason
    if name == "hybrid":
        assert all((c.ttft_s is not None) == (c.why_not is None) for c in told.candidates)
        assert told.candidates[0].cost_micros is not None
    assert [replica.in_flight for replica in replicas] == [0, 0, 4, 0]


def test_where_it_would_wait_it_says_so() -> None:
    parts = PolicyParts()
    policy, room = POLICIES["hybrid"](parts), Room(parts.models, RoutingConfig(), GOAL)
    (replica,) = make_replicas(1)
    replica.in_flight = 1000
    request = make_context()
    assert explain(policy, room, request, [replica], 0.0).reason == "it would wait: all replicas are full"
    replica.state = "starting"
    told = explain(policy, room, request, [replica], 0.0)
    assert (told.chosen, told.reason) == (None, "it would wait: no replica is up")
    assert explain(policy, room, request, [], 0.0).reason == "no pool serves this model to this class"
