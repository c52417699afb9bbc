"""What would happen to a request on a replica: its first token, its pace, its end, and what it takes of the engine.

From the replica's step-time model and its present work. Everything is counted at the moment of sending, so two requests
that come at once see each other; the engine's own figures add what this gateway can't know. This runs for every replica
at every request, which is why it is written flat.
"""

from __future__ import annotations

from typing import Final

from tandem.gateway.context import RequestContext
from tandem.gateway.replicas.replica import Replica
from tandem.gateway.routing.base import Candidate
from tandem.gateway.routing.replica_models import Known

_FRESH_S: Final = 2.0
"""How long the engine's own count of queued tokens is worth more than nothing."""
_WELL_FILLED: Final = 64.0
"""Answers that share a step in a replica which is called well filled, if the goal allows so many."""
_MOMENT_S: Final = 1e-3
_MICROS_PER_HOUR: Final = 1e6 / 3600.0


class Predictor:
    """For one request at one moment; the goal counts from the request's arrival, so what it has waited is gone."""

    __slots__ = ("_answers", "_finish_s", "_now_s", "_per_answer", "_request", "_tpot_s", "_ttft_s")

    def __init__(self, request: RequestContext, now_s: float, headroom: float) -> None:
        """`headroom`: share of the goal that a prediction may use."""
        goal, waited_s = request.goal, max(0.0, now_s - request.arrived_s)
        self._request = request
        self._now_s = now_s
        self._answers = max(1, request.num_answers)
        self._per_answer = max(1.0, request.output_tokens / self._answers)
        self._ttft_s = _limit(goal.ttft_s, waited_s, headroom)
        self._tpot_s = _limit(goal.tpot_s, 0.0, headroom)
        self._finish_s = _limit(goal.deadline_s, waited_s, headroom)

    def candidate(self, replica: Replica, known: Known, hit_tokens: int) -> Candidate:
        """`hit_tokens`: of the prompt, probably in the replica's prefix cache."""
        request, answers, per_answer = self._request, self._answers, self._per_answer
        base, token, sequence, _ = known.steps.coefficients
        bias = known.bias[request.service_class]
        uncached = max(1, request.prompt_tokens - hit_tokens)
        load = replica.in_flight + known.others
        wait_s = self._wait_s(replica, known, load) if replica.signals is not None else 0.0
        beside = min(load, known.seats - 1)
        queued = self._queued_tokens(replica, known)

        step_s = base + (token + sequence) * (beside + answers)
        tpot_s = step_s / (1.0 - known.prefill_share(self._now_s)) * bias.tpot
        ttft_s = (wait_s + known.steps.prefill_s(queued + uncached, beside)) * bias.ttft
        finish_s = ttft_s + (per_answer - 1.0) * tpot_s

        full = min(_WELL_FILLED, max(1.0, (self._tpot_s - base) / max(token + sequence, 1e-9)))
        fair_s = uncached * token + request.output_tokens * (base / full + token + sequence)
        goal_share = max(ttft_s / self._ttft_s, tpot_s / self._tpot_s, finish_s / self._finish_s)
        return Candidate(
            replica.id,
            ttft_s,
            tpot_s,
            finish_s,
            uncached * token + per_answer * step_s * answers / (beside + answers),
            fair_s * known.facts.price_per_hour * _MICROS_PER_HOUR,
            hit_tokens,
            beside,
            queued,
            goal_share <= 1.0,
            goal_share,
        )

    def _queued_tokens(self, replica: Replica, known: Known) -> float:
        """Prompt tokens that will be computed before this one's."""
        queued = replica.in_flight_prompt_tokens * known.uncached_share
        if known.others:
            queued += _queued_by_others(replica, known, self._now_s)
        if self._request.service_class == "interactive" and known.facts.has_priorities:
            num_batch = replica.in_flight_by_class["batch"]
            if num_batch:
                # Waiting batch prompts let an interactive one pass; what runs already runs on.
                queued *= 1.0 - num_batch / max(num_batch, replica.in_flight)
        return queued

    def _wait_s(self, replica: Replica, known: Known, load: int) -> float:
        """For a seat and for KV memory, whichever comes later."""
        seat_s, signals = 0.0, replica.signals
        if load >= known.seats:
            # Those who wait before us must each see somebody leave.
            seat_s = (load - known.seats + 1) * _time_of_an_answer_s(known.seats, known) / known.seats
        if not load or signals is None or signals.kv_usage is None or not known.kv_tokens:
            return seat_s
        missing = self._request.total_tokens + known.tokens_since_scrape - (1.0 - signals.kv_usage) * known.kv_tokens
        if missing <= 0:
            return seat_s
        return max(seat_s, min(1.0, missing / known.kv_tokens) * _time_of_an_answer_s(load, known))


def _limit(goal_s: float | None, waited_s: float, headroom: float) -> float:
    """What may still be used; a moment where all is gone, so that the nearest to the goal can be told."""
    return float("inf") if goal_s is None else max(_MOMENT_S, headroom * (goal_s - waited_s))


def _queued_by_others(replica: Replica, known: Known, now_s: float) -> float:
    """Their share of the prompt tokens that the engine itself says are still to be computed."""
    signals = replica.signals
    if signals is None or not signals.queued_prompt_tokens or now_s - signals.taken_s > _FRESH_S:
        return 0.0
    in_engine = (signals.running or 0) + (signals.waiting or 0)
    return signals.queued_prompt_tokens * known.others / max(1, in_engine)


def _time_of_an_answer_s(num_running: float, known: Known) -> float:
    return known.mean_output_tokens * known.steps.decode_step_s(num_running)
