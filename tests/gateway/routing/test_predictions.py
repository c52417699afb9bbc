"""Predictions are scored, and the same error isn't made for ever."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from tandem.gateway.context import Goal, RequestContext
from tandem.gateway.replicas.replica import Replica
from tandem.gateway.routing.base import Candidate, Decision
from tandem.gateway.routing.lengths import OutputLengths
from tandem.gateway.routing.predictions import Outcome, PredictionScores, met_goal
from tandem.gateway.routing.prefix_index import PrefixIndex
from tandem.gateway.routing.replica_models import MAX_REPLICAS, ReplicaModels
from tests.gateway.routing.fleet import make_context, make_replicas

GOAL = Goal(ttft_s=1.0, tpot_s=0.05)


class Scoring:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.models, self.index = ReplicaModels(), PrefixIndex()
        self.scores = PredictionScores(self.models, self.index, self.registry)
        self.replica: Replica = make_replicas(1)[0]

    def end(self, outcome: Outcome, request: RequestContext | None = None, **predicted: object) -> None:
        candidate = Candidate(self.replica.id, **predicted)  # type: ignore[arg-type]
        decision = Decision(self.replica, "", (candidate,), candidate)
        self.scores.ended(request or make_context(goal=GOAL), decision, outcome)

    def value(self, name: str, **labels: str) -> float:
        found = self.registry.get_sample_value(f"tandem_gateway_{name}", labels)
        assert found is not None, name
        return found


def test_errors_are_a_metric() -> None:
    scoring = Scoring()
    scoring.end(Outcome(ttft_s=0.5, tpot_s=0.02, finish_s=4.0, output_tokens=9), ttft_s=0.4, tpot_s=0.02, finish_s=1.0)
    assert scoring.value("prediction_error_ratio_bucket", quantity="ttft", le="0.2") == 1
    assert scoring.value("prediction_error_ratio_bucket", quantity="ttft", le="0.1") == 0
    assert scoring.value("prediction_error_ratio_bucket", quantity="tpot", le="0.05") == 1
    assert scoring.value("prediction_error_ratio_sum", quantity="finish") == 0.75
    assert scoring.value("prediction_error_ratio_count", quantity="engine") == 0


def test_kept_and_broken_promises_are_counted() -> None:
    scoring = Scoring()
    scoring.end(Outcome(ttft_s=0.5), ttft_s=0.4, meets_goal=True)
    scoring.end(Outcome(ttft_s=1.5), ttft_s=0.4, meets_goal=True)
    scoring.end(Outcome(ttft_s=0.9), ttft_s=1.4, meets_goal=False)
    labels = {"class": "interactive"}
    assert scoring.value("goal_predictions_total", expected="yes", met="yes", **labels) == 1
    assert scoring.value("goal_predictions_total", expected="yes", met="no", **labels) == 1
    assert scoring.value("goal_predictions_total", expected="no", met="yes", **labels) == 1


def test_broken_answers_and_unpredicted_ones_teach_nothing() -> None:
    scoring = Scoring()
    scoring.end(Outcome(ttft_s=9.0, is_whole=False), ttft_s=0.1)
    scoring.scores.ended(make_context(), Decision(scoring.replica, ""), Outcome(ttft_s=9.0))
    assert scoring.value("prediction_error_ratio_count", quantity="ttft") == 0
    assert scoring.models.of(scoring.replica).bias["interactive"].ttft == 1.0


def test_what_is_always_underestimated_is_corrected_within_bounds() -> None:
    scoring = Scoring()
    bias = scoring.models.of(scoring.replica).bias["interactive"]
    for _ in range(400):
        scoring.end(Outcome(ttft_s=0.6, tpot_s=0.02, output_tokens=50), ttft_s=0.4 * bias.ttft, tpot_s=0.02 * bias.tpot)
    assert bias.ttft == pytest.approx(1.5, rel=0.02)
    assert bias.tpot == pytest.approx(1.0)
    for _ in range(2000):
        scoring.end(Outcome(ttft_s=60.0), ttft_s=0.4 * bias.ttft)
    assert bias.ttft == 2.0
    (sibling,) = make_replicas(1, pool=scoring.replica.pool)
    sibling.id = "p/77"
    assert scoring.models.of(sibling).bias["interactive"] is bias, "it is the load's doing, not the replica's"


def test_a_prefix_that_was_not_there_makes_the_index_smaller() -> None:
    scoring = Scoring()
    scoring.index.add("p/00", [b"%d" % n for n in range(100)], 1000)
    scoring.end(Outcome(ttft_s=0.1, cached_tokens=900), ttft_s=0.1, hit_tokens=1000)
    scoring.end(Outcome(ttft_s=0.1, cached_tokens=None), ttft_s=0.1, hit_tokens=1000)
    scoring.end(Outcome(ttft_s=0.1, cached_tokens=0), ttft_s=0.1, hit_tokens=100)
    assert scoring.index.num_entries("p/00") == 100
    scoring.end(Outcome(ttft_s=0.1, cached_tokens=16), ttft_s=0.1, hit_tokens=1000)
    assert scoring.index.num_entries("p/00") == 75


@pytest.mark.parametrize(
    ("goal", "outcome", "expected"),
    [
        (GOAL, Outcome(ttft_s=0.9, tpot_s=0.05), True),
        (GOAL, Outcome(ttft_s=0.9, tpot_s=0.06), False),
        (GOAL, Outcome(ttft_s=None, finish_s=2.0), None),
        (Goal(deadline_s=10.0), Outcome(ttft_s=99.0, finish_s=9.0), True),
        (Goal(), Outcome(ttft_s=99.0), None),
    ],
)
def test_met_goal(goal: Goal, outcome: Outcome, expected: bool | None) -> None:
    assert met_goal(make_context(goal=goal), outcome) is expected


def test_what_is_known_of_replicas_is_bounded() -> None:
    models = ReplicaModels()
    (replica,) = make_replicas(1)
    for number in range(MAX_REPLICAS + 50):
        replica.id = f"p/{number}"
        models.of(replica)
    assert len(models._known) == MAX_REPLICAS


def test_output_lengths_are_learnt_by_key_and_model() -> None:
    lengths = OutputLengths(max_entries=20)
    assert lengths.expected("k", "m") == 200
    assert lengths.expected("k", "m", 50) == 50
    for _ in range(200):
        lengths.observe("k", "m", 20)
        lengths.observe("j", "m", 500)
    assert lengths.expected("k", "m") == 20
    assert lengths.expected("j", "m") == 500
    assert 20 < lengths.expected("new", "m") < 500, "a new key begins with the model's mean"
    lengths.observe("k", "m", 100_000)
    assert lengths.expected("k", "m") < 60, "one huge answer doesn't count for ten"
    for number in range(100):
        lengths.observe(str(number), "m", 7)
    assert len(lengths._logs) <= 20
