"""How long an engine's step takes, by what is in it; and from that, how long a prompt and an answer take.

    step_s = base + token x tokens + sequence x sequences + context x (tokens of context attended to)

A step reads every weight once (base), multiplies for each token, and for each sequence samples and reads its KV. Fitted
to the steps that the engine reports, or to the times of our own requests where it reports none. The same form serves
"many steps at once", for it is linear: a first token that took 3 steps is 3 bases and all their tokens.

After the analysis of iteration time in Orca (OSDI '22) and Sarathi-Serve (OSDI '24); the fit is ours.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Final

from tandem.perfmodel.least_squares import NonNegativeLeastSquares
from tandem.perfmodel.priors import PRIORS, StepCost

DEFAULT_BUDGET: Final = 2048
"""Tokens of a step, until a larger one was seen or an engine has told its steps."""
LEAST_BUDGET: Final = 512
"""The smallest budget that engines come with."""
_SHORTEST_S: Final = 1e-6
_LONGEST_S: Final = 600.0
"""A "step" outside these was a clock's jump or a stopped process."""
_OUTLIER: Final = 3.0
"""Errors beyond this many usual errors count less, the more so the larger they are."""
_LEAST_SPREAD: Final = 0.05
_STREAK: Final = 8
"""So many outliers to the same side in a row are not outliers: the engine has become another."""
_KEPT_AT_CHANGE: Final = 0.05


class StepTimeModel:
    """One engine's. All times in seconds."""

    def __init__(self, prior: StepCost = PRIORS["unknown"], *, forgetting: float = 0.995) -> None:
        self._fit = NonNegativeLeastSquares(prior, forgetting=forgetting)
        self._errors: deque[float] = deque(maxlen=32)
        self._spread = 1.0
        self._streak = 0
        self._budget_seen = 0
        self.num_observations = 0

    @property
    def cost(self) -> StepCost:
        return StepCost(*self._fit.coefficients)

    @property
    def coefficients(self) -> Sequence[float]:
        """The same four figures, without the names: for code that runs for every replica at every request."""
        return self._fit.coefficients

    @property
    def spread(self) -> float:
        """The usual relative error of its predictions: 0.1 is 10 %. 1.0 while nothing is known."""
        return self._spread

    @property
    def token_budget(self) -> int:
        """Most tokens in one step, as far as seen. Small steps so far don't say that larger ones can't be."""
        return max(self._budget_seen, LEAST_BUDGET) if self._budget_seen else DEFAULT_BUDGET

    # Learning --------------------------------------------------------------------------------------------------------

    def observe_step(self, step_s: float, num_tokens: int, num_seqs: int, context_tokens: int = 0) -> None:
        """A step that the engine reported."""
        if num_tokens > 0:
            self._budget_seen = max(self._budget_seen, num_tokens)
            self._observe((1.0, num_tokens, num_seqs, context_tokens), step_s)

    def observe_decode(self, tpot_s: float, num_running: float, context_tokens: float = 0.0) -> None:
        """The time per token of an answer of ours, beside `num_running` answers on average (itself included)."""
        self._observe((1.0, num_running, num_running, context_tokens), tpot_s)

    def observe_prefill(self, ttft_s: float, num_tokens: float, num_running: float) -> None:
        """A first token of ours: `num_tokens` prompt tokens, its own and those before it, were computed meanwhile."""
        steps = self._num_steps(num_tokens, num_running)
        self._observe((steps, num_tokens + steps * num_running, steps * num_running, 0.0), ttft_s)

    def _observe(self, features: tuple[float, float, float, float], seconds: float) -> None:
        if not _SHORTEST_S < seconds < _LONGEST_S:  # also refuses NaN
            return
        self.num_observations += 1
        error = math.log(seconds / max(self._fit.predict(features), _SHORTEST_S))
        self._fit.update(features, seconds, self._trust(error))

    def _trust(self, error: float) -> float:
        """Huber's weight: 1 for usual errors, falling as 1 / error beyond. Notices when the unusual becomes usual."""
        limit = _OUTLIER * max(self._spread, _LEAST_SPREAD)
        self._errors.append(abs(error))
        if len(self._errors) >= 4:
            self._spread = sorted(self._errors)[len(self._errors) // 2]
        if abs(error) <= limit or self.num_observations <= self._errors.maxlen:  # type: ignore[operator]
            self._streak = 0
            return 1.0
        side = 1 if error > 0 else -1
        self._streak = self._streak + side if self._streak * side > 0 else side
        if abs(self._streak) >= _STREAK:
            self._streak = 0
            self._fit.forget(_KEPT_AT_CHANGE)
            return 1.0
        return limit / abs(error)

    # Predicting ------------------------------------------------------------------------------------------------------

    def step_s(self, num_tokens: float, num_seqs: float, context_tokens: float = 0.0) -> float:
        """One step's time."""
        base, token, sequence, context = self._fit.coefficients
        return base + token * num_tokens + sequence * num_seqs + context * context_tokens

    def prefill_s(self, num_tokens: float, num_running: float) -> float:
        """To compute so many prompt tokens while `num_running` answers get a token in each step."""
        base, token, sequence, _ = self._fit.coefficients
        steps = self._num_steps(num_tokens, num_running)
        return steps * (base + (token + sequence) * num_running) + token * num_tokens + sequence * steps

    def decode_step_s(self, num_running: float, context_tokens: float = 0.0) -> float:
        """A step in which each of `num_running` answers gets one token."""
        return self.step_s(num_running, num_running, context_tokens)

    def _num_steps(self, num_tokens: float, num_running: float) -> int:
        room = max(1.0, self.token_budget - num_running)
        return max(1, math.ceil(num_tokens / room))
