"""What a request is charged: as reported, or estimated and marked so; exact to the micro-unit."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from tandem.gateway.accounting import cost, used_by
from tandem.gateway.context import Caller, Goal, RequestContext
from tandem.gateway.exchange import Exchange
from tandem.gateway.metrics import GatewayMetrics
from tandem.gateway.replicas.pool import Pool
from tandem.gateway.reported import read_usage
from tandem.gateway.retries import RetryBudget
from tandem.gateway.routing.base import Candidate, Decision
from tandem.protocol.usage import PromptTokensDetails, TandemUsage, Usage


def exchange(**changes: Any) -> Exchange:
    context = RequestContext(
        request_id="r", client_request_id=None, endpoint="/v1/chat/completions", caller=Caller(),
        service_class="interactive", goal=Goal(), model="m", body=b"", is_stream=True, wants_usage=False, num_answers=1,
        max_output_tokens=None, arrived_s=10.0, prompt_bytes=400, prompt_tokens=100, output_tokens=200,
    )  # fmt: skip
    pool = Pool("p", "m", price_per_hour=3.6)
    replica = pool.make_replica("http://127.0.0.1:1")
    predicted = Candidate(replica.id, engine_s=2.1)
    settings: dict[str, Any] = {"decision": Decision(replica, "", predicted=predicted), "sent_s": 11.0} | changes
    return Exchange(context, None, **settings)


def usage(prompt: int, cached: int | None, output: int, tandem: TandemUsage | None = None) -> Usage:
    details = None if cached is None else PromptTokensDetails(cached_tokens=cached)
    reported = Usage(
        prompt_tokens=prompt, completion_tokens=output, total_tokens=prompt + output, prompt_tokens_details=details
    )
    if tandem is not None:
        reported.tandem = tandem
    return reported


def test_reported_times_are_charged_as_they_are() -> None:
    told = TandemUsage(queue_s=0.1, prefill_s=0.2, decode_s=0.3, engine_s=0.25, kv_block_s=7.0)
    one = exchange(usage=usage(50, 10, 5, told))
    used = used_by(one, 12.0)
    assert used == (50, 10, 5, 0.1, 0.2, 0.3, 0.25, 7.0, False)
    assert cost(one, used) == 250  # 3.6 an hour is a thousandth a second


@pytest.mark.parametrize(
    ("prompt", "cached", "charged"), [(2006, 1920, 1920), (100, 100, 100), (10, None, 0), (10, 99, 10), (10, -5, 0)]
)
def test_cached_tokens_are_some_of_the_prompts(prompt: int, cached: int | None, charged: int) -> None:
    """ld-03: never on top, never more."""
    used = used_by(exchange(usage=usage(prompt, cached, 5)), 12.0)
    assert (used.prompt_tokens, used.cached_tokens) == (prompt, charged)
    assert used.is_estimated


def test_what_never_reached_a_replica_costs_nothing() -> None:
    one = exchange(decision=None, sent_s=None)
    used = used_by(one, 12.5)
    assert (used.prompt_tokens, used.output_tokens, used.queue_s, cost(one, used)) == (0, 0, 2.5, 0)


def test_an_aborted_stream_is_charged_for_what_was_produced() -> None:
    """ld-01: the prompt by its estimate, the output by its events, the engine's time in proportion."""
    one = exchange(num_events=95, first_token_s=11.5)
    used = used_by(one, 13.0)
    assert (used.prompt_tokens, used.output_tokens, used.is_estimated) == (100, 95, True)
    assert used.engine_s == pytest.approx(2.1 * (10 + 95) / (10 + 200))
    assert (used.queue_s, used.prefill_s, used.decode_s) == (1.0, 0.5, 1.5)


def test_without_a_prediction_no_seconds_are_made_up() -> None:
    one = exchange()
    assert one.decision is not None
    one.decision = Decision(one.decision.replica, "")
    assert used_by(one, 12.0).engine_s == 0.0


def test_many_small_costs_add_up_exactly() -> None:
    told = TandemUsage(queue_s=0, prefill_s=0, decode_s=0, engine_s=0.001, kv_block_s=0)
    one = exchange(usage=usage(1, 0, 1, told))
    assert sum(cost(one, used_by(one, 12.0)) for _ in range(10_000)) == 10_000


@pytest.mark.parametrize(
    "said", [b"", b"null", b"{}", b"7", b'{"prompt_tokens":"x"}', b"[]", b'{"prompt_tokens":null}']
)
def test_an_odd_usage_is_as_good_as_none(said: bytes) -> None:
    """ld-03: one odd report spoils nothing."""
    assert read_usage(msgspec.Raw(said)) is None


def test_a_usage_with_gaps_is_read() -> None:
    told = read_usage(
        msgspec.Raw(b'{"prompt_tokens":8,"prompt_tokens_details":{"cached_tokens":null},"tandem":{"x":1}}')
    )
    assert told is not None
    assert (told.prompt_tokens, told.completion_tokens, told.prompt_tokens_details) == (8, 0, None)
    assert not told.tandem


def test_extra_attempts_have_a_budget() -> None:
    budget = RetryBudget(0.5, 2)
    assert [budget.spend() for _ in range(3)] == [True, True, False]
    budget.earn()
    assert not budget.spend()
    budget.earn()
    assert budget.spend()
    for _ in range(100):
        budget.earn()
    assert [budget.spend() for _ in range(3)] == [True, True, False]


def test_series_are_bounded_whatever_comes() -> None:
    registry = CollectorRegistry()
    metrics = GatewayMetrics(registry)
    for _ in range(1000):
        metrics.refused(404)
    assert len(metrics._request_series) == 1
