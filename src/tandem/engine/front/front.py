"""What all handlers of one front share: the engine, the text layer, the settings, and whether requests are taken."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, Literal, ParamSpec, TypeVar

from aiohttp import web

from tandem.config.engine import EngineConfig
from tandem.config.server import ServerConfig
from tandem.core.clock import Clock
from tandem.core.errors import InvalidRequest, NotFound, Overloaded, RequestTooLarge, TandemError, Unavailable
from tandem.engine.client import EngineClient
from tandem.engine.front.admission import Admission, retry_after_s
from tandem.engine.front.logprobs import LogprobFormatter
from tandem.engine.front.steps import StepLog
from tandem.engine.front.text_service import TextService
from tandem.engine.messages import Ready
from tandem.observability.metrics import EngineMetrics, RefusalReason

P = ParamSpec("P")
T = TypeVar("T")
ClosedReason = Literal["loading", "draining", "engine_down"]
NUM_TEXT_THREADS: Final = 2
"""Rendering and tokenising happen here, so that a long prompt doesn't hold up the streams."""
_MAX_WARNED_FIELDS: Final = 1000
_MAX_WARNED_AT_ONCE: Final = 20
_FIELD_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")
_log = logging.getLogger(__name__)


class Front:
    """Owns the text threads and the counts; the engine and the text layer are the caller's."""

    def __init__(
        self,
        client: EngineClient,
        text: TextService,
        config: ServerConfig,
        engine: EngineConfig,
        metrics: EngineMetrics,
        clock: Clock,
    ) -> None:
        self.client = client
        self.text = text
        self.config = config
        self.engine = engine
        self.metrics = metrics
        self.clock = clock
        self.admission = Admission(engine.max_queued_requests, engine.max_queued_tokens)
        self.steps = StepLog(metrics)
        self.logprobs = LogprobFormatter(text)
        self.created = self.now_unix()
        self.is_draining = False
        self._seeds = random.Random(engine.seed) if engine.seed else random.SystemRandom()
        self._threads = ThreadPoolExecutor(NUM_TEXT_THREADS, thread_name_prefix="text")
        self._warned_fields: set[str] = set()
        self.num_open = 0
        """Requests between their first and their last byte."""
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def model_name(self) -> str:
        return self.engine.public_name

    # Whether requests are taken.

    def closed_reason(self) -> ClosedReason | None:
        """Why no request is taken now; None when they are."""
        if not self.client.is_alive:
            return "engine_down"
        if self.is_draining:
            return "draining"
        if self.client.info is None:
            return "loading"
        return "engine_down" if self.is_silent else None

    @property
    def is_silent(self) -> bool:
        """The engine's loop has given no sign of life for too long: hung, whatever its process says."""
        return self.client.heartbeat_age_s() > self.config.health_timeout_s

    def describe(self, reason: ClosedReason) -> str:
        if reason == "loading":
            return "The model is still loading."
        if reason == "draining":
            return "The server is shutting down."
        if self.client.is_alive:
            return f"The engine has given no sign of life for {self.client.heartbeat_age_s():.0f} s."
        return f"The engine has died: {self.client.failure or 'no reason is known'}"

    def ready(self) -> Ready:
        """The loaded engine's facts. Raises `Unavailable` when no request is taken."""
        reason = self.closed_reason()
        if reason is not None:
            raise Unavailable(self.describe(reason), retry_after_s=retry_after_s(reason))
        assert self.client.info is not None
        return self.client.info

    @contextmanager
    def open_request(self) -> Iterator[None]:
        """Counts a request from its first byte to its last, so that a shutdown can wait for it."""
        self.num_open += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.num_open -= 1
            if self.num_open == 0:
                self._idle.set()

    @contextmanager
    def reading_body(self) -> Iterator[None]:
        """A request that has not come in whole is not yet open: a shutdown doesn't wait for it."""
        self.num_open -= 1
        if self.num_open == 0:
            self._idle.set()
        try:
            yield
        finally:
            self.num_open += 1
            self._idle.clear()

    async def wait_idle(self) -> None:
        """Until no request is open."""
        await self._idle.wait()

    # What handlers need on the way.

    async def in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run text work off the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: work(*args, **kwargs))

    @staticmethod
    def now_unix() -> int:
        """For `created`: seconds since 1970, which no other use of time here is."""
        return int(time.time())

    def draw_seed(self) -> int:
        """For a request that brings none."""
        return self._seeds.getrandbits(63)

    def check_model(self, name: str | None) -> None:
        if name is not None and name != self.model_name:
            raise NotFound(
                f"The model {name!r:.200} does not exist here; this engine serves {self.model_name!r}.",
                param="model",
                code="model_not_found",
            )

    def warn_unknown_fields(self, names: tuple[str, ...]) -> None:
        """Once for each name, not for each request: a client that sends one sends it every time."""
        # A name is the client's text, and only what looks like a field's name goes into a log.
        likely = [name for name in names if _FIELD_NAME.fullmatch(name) and name not in self._warned_fields]
        new = likely[:_MAX_WARNED_AT_ONCE]
        if new and len(self._warned_fields) < _MAX_WARNED_FIELDS:
            self._warned_fields.update(new)
            _log.warning("request fields without effect here are ignored: %s", ", ".join(new))

    @contextmanager
    def counting_refusals(self) -> Iterator[None]:
        """Everything that may refuse a generation before it is accepted happens inside this."""
        try:
            yield
        except TandemError as error:
            self.metrics.refused(self._refusal(error))
            raise

    def _refusal(self, error: TandemError) -> RefusalReason:
        if isinstance(error, Unavailable):
            return self.closed_reason() or "other"
        for kind, reason in _REFUSALS.items():
            if isinstance(error, kind):
                return reason
        return "other"

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


_REFUSALS: Final[dict[type[TandemError], RefusalReason]] = {
    RequestTooLarge: "too_large",
    InvalidRequest: "invalid",
    NotFound: "not_found",
    Overloaded: "queue_full",
}
"""kind of error → label; the first that fits, so a class stands before its base."""

FRONT = web.AppKey("front", Front)
