"""What the HTTP front sees of an engine. `core_client.py` implements it over a process; tests with a scripted fake."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Protocol

from tandem.engine.messages import EngineStats, NewRequest, Output, Ready
from tandem.protocol.state import KVEventBatch


class EngineClient(Protocol):
    """An engine that takes tokens and gives tokens."""

    info: Ready | None
    """None until the model is loaded."""

    @property
    def is_alive(self) -> bool:
        """False once the core has died; `failure` then says why."""
        ...

    @property
    def failure(self) -> str | None: ...

    @property
    def stats(self) -> EngineStats:
        """The newest report's."""
        ...

    def watch_steps(self, listener: Callable[[EngineStats], None]) -> None:
        """Call `listener` with every report from now on."""
        ...

    def watch_cache(self, listener: Callable[[KVEventBatch], None] | None) -> None:
        """Call `listener` with the prefix cache's changes from now on, the first being a `CacheResync`; None ends it.

        Called again, it begins anew. Nothing comes while the engine is not loaded or has died.
        """
        ...

    def heartbeat_age_s(self) -> float:
        """Seconds since the core's loop last gave a sign of life."""
        ...

    def generate(self, request: NewRequest) -> AsyncGenerator[Output, None]:
        """Outputs in order, until each of the n answers had one with a finish reason.

        Closing the generator before that (`aclose`, cancellation) aborts the request in the core. Raises
        `EngineFailed` when the core dies, `Unavailable` when it is not ready or draining.
        """
        ...

    async def drain(self, timeout_s: float) -> None:
        """Let what runs finish, for at most so long, then end the core."""
        ...
