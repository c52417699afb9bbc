"""Requests, replicas and an injected `fetch` for tests of replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from tandem.config.deployment import EngineKind
from tandem.core.types import ServiceClass
from tandem.gateway.context import Caller, Endpoint, Goal, RequestContext
from tandem.gateway.replicas.base import AdapterOptions, Fields
from tandem.gateway.replicas.pool import Pool
from tandem.gateway.replicas.replica import Replica

Answer = tuple[int, bytes] | Exception | asyncio.Event
"""What a replica does: answers, fails, or is silent until the event is set."""


def make_request(
    *,
    endpoint: Endpoint = "/v1/chat/completions",
    service_class: ServiceClass = "interactive",
    is_stream: bool = False,
    max_output_tokens: int | None = None,
    cache_salt: str | None = None,
    num_answers: int = 1,
) -> RequestContext:
    return RequestContext(
        request_id="req-1", client_request_id=None, endpoint=endpoint, caller=Caller(cache_salt=cache_salt),
        service_class=service_class, goal=Goal(), model="chat", body=b"{}", is_stream=is_stream, wants_usage=False,
        num_answers=num_answers, max_output_tokens=max_output_tokens, arrived_s=0.0, prompt_bytes=10, prompt_tokens=3,
        output_tokens=16,
    )  # fmt: skip


def encode(fields: dict[str, Any]) -> Fields:
    return {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in fields.items()}


def decode(fields: Fields) -> dict[str, Any]:
    return {name: msgspec.json.decode(value) for name, value in fields.items()}


def make_pool(engine: EngineKind = "tandem", *urls: str, name: str = "p", **settings: Any) -> Pool:
    options = AdapterOptions(has_priorities=settings.pop("has_priorities", False))
    pool = Pool(
        name=name, model="m", engine=engine, aliases=settings.pop("aliases", ("chat",)), options=options, **settings
    )
    pool.replicas.extend(pool.make_replica(url) for url in urls)
    return pool


class FakeFleet:
    """url → path → what it answers; the rest is a 404. Remembers every call."""

    def __init__(self) -> None:
        self.answers: dict[str, dict[str, Answer]] = {}
        self.calls: list[tuple[str, str, str]] = []
        self.before: Callable[[], None] | None = None

    def set(self, url: str, path: str, answer: Answer) -> None:
        self.answers.setdefault(url, {})[path] = answer

    def paths(self, url: str) -> list[str]:
        return [path for called, _, path in self.calls if called == url]

    async def fetch(
        self, replica: Replica, method: str, path: str, body: bytes | None, timeout_s: float
    ) -> tuple[int, bytes]:
        self.calls.append((replica.url, method, path))
        if self.before is not None:
            self.before()
        answer = self.answers.get(replica.url, {}).get(path, (404, b""))
        if isinstance(answer, asyncio.Event):
            await answer.wait()
            return 200, b""
        if isinstance(answer, Exception):
            raise answer
        return answer
