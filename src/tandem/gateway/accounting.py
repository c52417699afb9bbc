"""What a request used and cost, written down once: ledger, limits, metrics, and what the estimates learn from it.

The rule for what the engine didn't say (`is_estimated`): prompt tokens by the model's bytes ratio if the request had
reached a replica, else 0; output tokens by the number of events passed on (a plain answer: by its bytes); engine
seconds as predicted for the chosen replica, in proportion to the tokens that came.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, NamedTuple

from tandem.core.clock import Clock
from tandem.gateway.exchange import Exchange
from tandem.gateway.lengths import LengthEstimates
from tandem.gateway.metrics import NO_POOL, GatewayMetrics
from tandem.gateway.parts import Scores
from tandem.gateway.routing.predictions import Outcome
from tandem.gateway.store.base import Ledger, Limits
from tandem.protocol.ledger import LedgerRow
from tandem.protocol.usage import Usage

_SECONDS_IN_HOUR: Final = 3600.0
_MICROS: Final = 1_000_000
_log = logging.getLogger(__name__)


class Used(NamedTuple):
    """Of one request."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    queue_s: float
    prefill_s: float
    decode_s: float
    engine_s: float
    kv_block_s: float
    is_estimated: bool


class Accounts:
    """Called once for each accepted request, when it is over, however it ended. Never waits and never raises."""

    def __init__(
        self, ledger: Ledger, limits: Limits, metrics: GatewayMetrics, lengths: LengthEstimates, scores: Scores | None,
        clock: Clock, *, currency: str = "USD", price_version: str = "1",
        utc: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:  # fmt: skip
        self._ledger = ledger
        self._limits = limits
        self._metrics = metrics
        self._lengths = lengths
        self._scores = scores
        self._clock = clock
        self._currency = currency
        self._price_version = price_version
        self._utc = utc

    def close(self, exchange: Exchange) -> None:
        """The end of a request."""
        now_s = self._clock.now()
        used = used_by(exchange, now_s)
        cost_micros = cost(exchange, used)
        context = exchange.context
        self._ledger.record(self._row(exchange, used, cost_micros))
        if exchange.is_reserved:
            used_tokens = used.prompt_tokens + used.output_tokens
            self._limits.settle(context.caller, exchange.reserved_tokens, used_tokens, cost_micros)
        self._count(exchange, used, now_s)
        if _log.isEnabledFor(logging.INFO):
            _say(exchange, used, now_s)
        if exchange.outcome == "ok":
            self._learn(exchange, used, now_s)

    def _row(self, exchange: Exchange, used: Used, cost_micros: int) -> LedgerRow:
        context, replica = exchange.context, exchange.replica
        return LedgerRow(
            request_id=context.request_id,
            time=self._utc(),
            tenant=context.caller.tenant,
            key_id=context.caller.key_id,
            service_class=context.service_class,
            model=context.model,
            pool=NO_POOL if replica is None else replica.pool.name,
            replica=NO_POOL if replica is None else replica.id,
            prompt_tokens=used.prompt_tokens,
            cached_tokens=used.cached_tokens,
            output_tokens=used.output_tokens,
            queue_s=used.queue_s,
            prefill_s=used.prefill_s,
            decode_s=used.decode_s,
            engine_s=used.engine_s,
            kv_block_s=used.kv_block_s,
            cost_micros=cost_micros,
            currency=self._currency,
            price_version=self._price_version,
            is_estimated=used.is_estimated,
            status=exchange.outcome,
        )

    def _count(self, exchange: Exchange, used: Used, now_s: float) -> None:
        context, first_s, replica = exchange.context, exchange.first_token_s, exchange.replica
        self._metrics.ended(
            context.service_class, context.model, NO_POOL if replica is None else replica.pool.name, exchange.status,
            ttft_s=None if first_s is None else first_s - context.arrived_s,
            e2e_s=now_s - context.arrived_s if exchange.outcome == "ok" else None,
            prompt_tokens=used.prompt_tokens,
            output_tokens=used.output_tokens,
        )  # fmt: skip

    def _learn(self, exchange: Exchange, used: Used, now_s: float) -> None:
        """Only from answers that came to their own end, and only from what the engine itself counted."""
        context, sent_s = exchange.context, exchange.sent_s
        usage = exchange.usage
        if usage is not None:
            self._lengths.saw_prompt(context.model, context.prompt_bytes, usage.prompt_tokens)
            if context.endpoint != "/v1/embeddings":
                per_answer = usage.completion_tokens // max(1, context.num_answers)
                self._lengths.saw_output(context.caller.key_id, context.model, per_answer)
        if self._scores is not None and exchange.decision is not None and sent_s is not None:
            self._scores.ended(context, exchange.decision, outcome_of(exchange, used, sent_s, now_s))


def _say(exchange: Exchange, used: Used, now_s: float) -> None:
    """One line a request: ids, counts and names; nothing that a client or a model wrote."""
    context, replica = exchange.context, exchange.replica
    _log.info(
        "request %s",
        exchange.outcome,
        extra={
            "status": exchange.status,
            "tenant": context.caller.tenant,
            "key_id": context.caller.key_id,
            "model": context.model,
            "service_class": context.service_class,
            "replica": NO_POOL if replica is None else replica.id,
            "attempts": exchange.num_attempts,
            "prompt_tokens": used.prompt_tokens,
            "output_tokens": used.output_tokens,
            "duration_s": round(now_s - context.arrived_s, 4),
        },
    )


def outcome_of(exchange: Exchange, used: Used, sent_s: float, now_s: float) -> Outcome:
    """What the routing policy's prediction is compared with."""
    first_s, usage = exchange.first_token_s, exchange.usage
    decode_s = 0.0 if first_s is None else now_s - first_s
    outputs = used.output_tokens // max(1, exchange.context.num_answers)
    return Outcome(
        ttft_s=None if first_s is None else first_s - sent_s,
        tpot_s=decode_s / (outputs - 1) if first_s is not None and outputs > 1 else None,
        finish_s=now_s - sent_s,
        engine_s=None if used.is_estimated else used.engine_s,
        prompt_tokens=None if usage is None else used.prompt_tokens,
        cached_tokens=None if usage is None else used.cached_tokens,
        output_tokens=None if usage is None else used.output_tokens,
    )


def used_by(exchange: Exchange, now_s: float) -> Used:
    """As the engine reported; what it left out is filled in, and marked."""
    if exchange.sent_s is None:  # nothing was computed for it
        return Used(0, 0, 0, max(0.0, now_s - exchange.context.arrived_s), 0.0, 0.0, 0.0, 0.0, False)
    usage = exchange.usage
    prompt, cached, output = _estimated_tokens(exchange) if usage is None else _reported_tokens(usage)
    tandem = None if usage is None else (usage.tandem or None)
    if tandem is not None:
        return Used(prompt, cached, output, tandem.queue_s, tandem.prefill_s, tandem.decode_s, tandem.engine_s,
                    tandem.kv_block_s, False)  # fmt: skip
    first_s = exchange.first_token_s
    queue_s = exchange.sent_s - exchange.context.arrived_s
    prefill_s = (now_s if first_s is None else first_s) - exchange.sent_s
    decode_s = 0.0 if first_s is None else now_s - first_s
    engine_s = _predicted_engine_s(exchange, output)
    return Used(prompt, cached, output, queue_s, prefill_s, decode_s, engine_s, 0.0, True)


def cost(exchange: Exchange, used: Used) -> int:
    """Micro-units of the currency: the replica's price for the seconds of engine that were this request's."""
    if exchange.replica is None:
        return 0
    return round(exchange.replica.pool.price_per_hour * used.engine_s * _MICROS / _SECONDS_IN_HOUR)


def _reported_tokens(usage: Usage) -> tuple[int, int, int]:
    """Cached tokens are some of the prompt's, never more, whatever an engine says."""
    prompt = max(0, usage.prompt_tokens)
    details = usage.prompt_tokens_details
    cached = 0 if details is None else min(max(0, details.cached_tokens), prompt)
    return prompt, cached, max(0, usage.completion_tokens)


def _estimated_tokens(exchange: Exchange) -> tuple[int, int, int]:
    output = exchange.num_events
    if exchange.client is None and exchange.answer_bytes:
        output = min(exchange.context.output_tokens, max(1, exchange.answer_bytes // 4))
    return exchange.context.prompt_tokens, 0, output


def _predicted_engine_s(exchange: Exchange, output_tokens: int) -> float:
    """Without a prediction: none, rather than a guess that looks like money."""
    decision = exchange.decision
    predicted = None if decision is None or decision.predicted is None else decision.predicted.engine_s
    if predicted is None:
        return 0.0
    context = exchange.context
    expected = context.prompt_tokens / 10 + context.output_tokens
    came = context.prompt_tokens / 10 + output_tokens
    return predicted * came / expected if expected > 0 else predicted
