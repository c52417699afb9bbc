"""The engine's newest steps, for the metrics and for `/tandem/state`."""

from __future__ import annotations

from collections import deque
from typing import Final

from tandem.engine.messages import EngineStats
from tandem.observability.metrics import EngineMetrics
from tandem.protocol.state import StepSample

NUM_RECENT_STEPS: Final = 128


class StepLog:
    """Remembers the last steps, each once: a heartbeat repeats the step before it."""

    def __init__(self, metrics: EngineMetrics) -> None:
        self._metrics = metrics
        self._recent: deque[StepSample] = deque(maxlen=NUM_RECENT_STEPS)
        self._num_seen = 0

    def record(self, stats: EngineStats) -> None:
        """Called with every report of the engine."""
        if stats.num_steps > self._num_seen:
            self._num_seen = stats.num_steps
            self._metrics.step(stats.last_step_s, stats.last_step_tokens, stats.last_step_seqs)
            self._recent.append(StepSample(stats.last_step_s, stats.last_step_tokens, stats.last_step_seqs))

    def recent(self) -> list[StepSample]:
        """Oldest first."""
        return list(self._recent)
