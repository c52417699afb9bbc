"""Silence, seen with a clock that moves by hand."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tandem.config.gateway_upstream import UpstreamConfig
from tandem.core.clock import ManualClock
from tandem.gateway.forwarding import Attempt
from tandem.gateway.pings import Pings
from tandem.gateway.upstream.failures import ConnectionBroken, Silent, UpstreamFailure


class FakeAnswer:
    def __init__(self) -> None:
        self.last_byte_s = 0.0
        self.failures: list[UpstreamFailure] = []

    def fail(self, failure: UpstreamFailure) -> None:
        self.failures.append(failure)


class FakeScanner:
    has_content = True


class FakeRelay:
    """A stream that has begun."""

    scanner = FakeScanner()
    last_content_s = 0.0
    behind_since_s: float | None = None
    was_dropped = False

    def behind_for_s(self, now_s: float) -> float:
        return 0.0 if self.behind_since_s is None else now_s - self.behind_since_s

    def drop_client(self) -> None:
        self.was_dropped = True


class FakeReplica:
    state = "up"


def attempt(*, is_stream: bool, relay: FakeRelay | None = None) -> tuple[Any, FakeAnswer]:
    class Context:
        pass

    one: Any = Attempt.__new__(Attempt)
    one._context, one._config, one.replica = Context(), UpstreamConfig(), FakeReplica()
    one._context.is_stream = is_stream
    one._answer = answer = FakeAnswer()
    one.relay, one.sent_s = relay, 0.0
    return one, answer


@pytest.mark.parametrize(("is_stream", "limit_s"), [(True, 300.0), (False, 1800.0)])
def test_silence_before_anything_has_a_limit(is_stream: bool, limit_s: float) -> None:
    one, answer = attempt(is_stream=is_stream)
    one.check(limit_s - 1)
    assert answer.failures == []
    one.check(limit_s + 1)
    assert isinstance(answer.failures[0], Silent)


def test_a_long_answer_is_not_silence() -> None:
    """Hours are fine as long as content comes."""
    relay = FakeRelay()
    one, answer = attempt(is_stream=True, relay=relay)
    for now_s in range(0, 36_000, 60):
        relay.last_content_s = float(now_s)
        one.check(now_s + 59.0)
    assert answer.failures == []
    one.check(36_000 + 121.0)
    assert isinstance(answer.failures[0], Silent)


def test_a_slow_client_is_not_the_replicas_silence_but_has_a_limit_too() -> None:
    relay = FakeRelay()
    relay.behind_since_s = 10.0
    one, answer = attempt(is_stream=True, relay=relay)
    one.check(300.0)
    assert (answer.failures, relay.was_dropped) == ([], False)
    one.check(311.0)
    assert (answer.failures, relay.was_dropped) == ([], True)


def test_a_replica_that_is_found_dead_is_not_waited_for() -> None:
    one, answer = attempt(is_stream=False)
    one.replica.state = "down"
    one.check(1.0)
    assert isinstance(answer.failures[0], ConnectionBroken)


async def test_pings_come_at_their_times_and_stop() -> None:
    class Client:
        is_started = False
        wrote = 0

        async def start(self, headers: Any) -> None:
            self.is_started = True

        def write(self, data: bytes) -> bool:
            self.wrote += 1
            return False

    clock, client = ManualClock(100.0), Client()
    pings = Pings(client, 100.0, UpstreamConfig(), dict)  # type: ignore[arg-type]
    for _ in range(14):
        clock.advance(1)
        pings.check(clock.now())
    assert client.wrote == 0
    clock.advance(1)
    pings.check(clock.now())
    await asyncio.sleep(0)
    assert client.wrote == 1
    clock.advance(14)
    pings.check(clock.now())
    assert client.wrote == 1
    clock.advance(1)
    pings.check(clock.now())
    assert client.wrote == 2
    assert await pings.stop()
    clock.advance(1000)
    pings.check(clock.now())
    assert client.wrote == 2
