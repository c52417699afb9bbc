"""The engine's newest steps, for the metrics and for `/tandem/state`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, runtime_checkable

from tandem.engine.messages import EngineStats
from tandem.observability.metrics import EngineMetrics
from tandem.protocol.state import StepSample

NUM_RECENT_STEPS: Final = 128


@runtime_checkable
class ReportsSteps(Protocol):
    """An engine client that passes on every report. Without it, step metrics stay empty."""

    def watch_steps(self, listener: Callable[[EngineStats], None]) -> None: ...


class StepLog:
    """Remembers the last steps, each once: a heartbeat repeats the step before it."""

    def __init__(self, metrics: EngineMetrics) -> None:
        self._metrics = metrics
        self._recent: deque[StepSample] = deque(maxlen=NUM_RECENT_STEPS)
        self._num_seen = 0

    def record(self, stats: EngineStats) -> None:
        if stats.num_steps > self._num_seen:
            self._num_seen = stats.num_steps
            self._metrics.step(stats.last_step_s, stats.last_step_tokens, stats.last_step_seqs)
            self._recent.append(StepSample(stats.last_step_s, stats.last_step_tokens, stats.last_step_seqs))

    def recent(self) -> list[StepSample]:
        """Oldest first."""
        return list(self._recent)
