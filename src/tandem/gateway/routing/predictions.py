"""Scores predictions when answers end, learns from the errors, and shows them as metrics.

Three things are learnt from an answer: how far first token and pace were off in the same direction as before (bias);
where the engine doesn't report its steps, the step times themselves; and whether the prefix was there as expected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram

from tandem.gateway.context import RequestContext
from tandem.gateway.routing.base import Candidate, Decision
from tandem.gateway.routing.prefix_index import PrefixIndex
from tandem.gateway.routing.replica_models import Known, ReplicaModels

Quantity = Literal["ttft", "tpot", "finish", "engine"]
_ERRORS: Final = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0)
_FEW_TOKENS: Final = 256
"""A hit smaller than this proves nothing about the index."""
_FEW_OUTPUTS: Final = 4
"""A pace over fewer tokens than this is noise."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What really happened to an answer. Seconds from the moment it was sent upstream; None: not known."""

    ttft_s: float | None = None
    """To the first content; None for answers that didn't stream."""
    tpot_s: float | None = None
    finish_s: float | None = None
    engine_s: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    is_whole: bool = True
    """False: broken or left. It is not scored."""


class PredictionScores:
    """Fed by the proxy with every answer that ended."""

    def __init__(self, models: ReplicaModels, index: PrefixIndex, registry: CollectorRegistry) -> None:
        self._models = models
        self._index = index
        errors = Histogram(
            "tandem_gateway_prediction_error_ratio",
            "Of predictions by the routing policy: |measured - predicted| / measured.",
            ("quantity",),
            registry=registry,
            buckets=_ERRORS,
        )
        self._errors = {quantity: errors.labels(quantity) for quantity in get_args(Quantity)}
        goals = Counter(
            "tandem_gateway_goal_predictions",
            "Answers by service class, whether they were expected to meet their goal, and whether they did.",
            ("class", "expected", "met"),
            registry=registry,
        )
        self._goals = {
            (service_class, expected, met): goals.labels(service_class, _yes(expected), _yes(met))
            for service_class in ("interactive", "batch")
            for expected in (True, False)
            for met in (True, False)
        }

    def ended(self, request: RequestContext, decision: Decision, outcome: Outcome) -> None:
        """Score the decision. The replica still counts the request as in flight, or has just stopped to."""
        predicted = decision.predicted
        if predicted is None or not outcome.is_whole:
            return
        known = self._models.of(decision.replica)
        self._count(request, predicted, outcome)
        self._learn_bias(request, known, predicted, outcome)
        if not known.tells_steps:
            self._learn_steps(request, known, predicted, outcome, decision.replica.in_flight)
        self._check_prefix(decision, predicted, outcome)

    def _count(self, request: RequestContext, predicted: Candidate, outcome: Outcome) -> None:
        for quantity, expected_s, measured_s in (
            ("ttft", predicted.ttft_s, outcome.ttft_s),
            ("tpot", predicted.tpot_s, outcome.tpot_s),
            ("finish", predicted.finish_s, outcome.finish_s),
            ("engine", predicted.engine_s, outcome.engine_s),
        ):
            if expected_s is not None and measured_s is not None and measured_s > 0:
                self._errors[quantity].observe(abs(measured_s - expected_s) / measured_s)
        met = met_goal(request, outcome)
        if met is not None and predicted.meets_goal is not None:
            self._goals[request.service_class, predicted.meets_goal, met].inc()

    def _learn_bias(self, request: RequestContext, known: Known, predicted: Candidate, outcome: Outcome) -> None:
        bias = known.bias[request.service_class]
        if predicted.ttft_s and outcome.ttft_s:
            bias.learn("ttft", outcome.ttft_s, predicted.ttft_s)
        if predicted.tpot_s and outcome.tpot_s and (outcome.output_tokens or 0) >= _FEW_OUTPUTS:
            bias.learn("tpot", outcome.tpot_s, predicted.tpot_s)

    def _learn_steps(
        self, request: RequestContext, known: Known, predicted: Candidate, outcome: Outcome, num_running_now: int
    ) -> None:
        prompt = outcome.prompt_tokens or request.prompt_tokens
        hit = predicted.hit_tokens if outcome.cached_tokens is None else outcome.cached_tokens
        if outcome.ttft_s:
            known.steps.observe_prefill(
                outcome.ttft_s, predicted.queued_tokens + max(1, prompt - hit), predicted.num_running
            )
        if outcome.tpot_s and (outcome.output_tokens or 0) >= _FEW_OUTPUTS:
            before, now = predicted.num_running + request.num_answers, max(num_running_now, request.num_answers)
            known.steps.observe_decode(outcome.tpot_s, (before + now) / 2)

    def _check_prefix(self, decision: Decision, predicted: Candidate, outcome: Outcome) -> None:
        if outcome.cached_tokens is None or predicted.hit_tokens < _FEW_TOKENS:
            return
        if outcome.cached_tokens < predicted.hit_tokens / 2:
            self._index.correct(decision.replica.id)


def met_goal(request: RequestContext, outcome: Outcome) -> bool | None:
    """Whether what is known of the answer was within the goal; None where the goal speaks of nothing that is known."""
    goal = request.goal
    checks = [
        measured_s <= goal_s
        for goal_s, measured_s in (
            (goal.ttft_s, outcome.ttft_s),
            (goal.tpot_s, outcome.tpot_s),
            (goal.deadline_s, outcome.finish_s),
        )
        if goal_s is not None and measured_s is not None
    ]
    return all(checks) if checks else None


def _yes(value: bool) -> str:
    return "yes" if value else "no"
