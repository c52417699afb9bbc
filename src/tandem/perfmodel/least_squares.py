"""Online least squares with forgetting: coefficients that can't be negative, and a prior that fades.

Every observation is a row x of features and what was measured, y ~ c.x. Kept are only the decayed sums of x x^T and
x y, so the memory is fixed and an update costs a dozen multiplications; who asks has the coefficients solved for.
Errors count relative to y: a decode step of 10 ms matters as much as a prefill of 2 s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


class NonNegativeLeastSquares:
    """`prior`: the coefficients before anything is known, trusted as much as `prior_weight` observations."""

    def __init__(self, prior: Sequence[float], *, prior_weight: float = 2.0, forgetting: float = 0.995) -> None:
        assert all(c >= 0 for c in prior), f"coefficients can't be negative: {prior}"
        assert 0 < forgetting <= 1, forgetting
        self._size = len(prior)
        self._prior = list(prior)
        self._prior_weight = prior_weight
        self._forgetting = forgetting
        self._products = [[0.0] * self._size for _ in prior]
        self._targets = [0.0] * self._size
        self._coefficients = list(prior)
        self._is_current = True
        self.weight = 0.0
        """Observations remembered, older ones counting less."""

    @property
    def coefficients(self) -> list[float]:
        """The best ones so far. Not to be changed by the caller."""
        if not self._is_current:
            self._solve()
            self._is_current = True
        return self._coefficients

    def predict(self, features: Sequence[float]) -> float:
        return sum(c * x for c, x in zip(self.coefficients, features, strict=True))

    def update(self, features: Sequence[float], measured: float, weight: float = 1.0) -> None:
        """`measured` > 0. `weight`: how far to trust it, from 0 to 1."""
        self.forget(self._forgetting)
        self.weight += weight
        scale = weight / (measured * measured)
        for i, x in enumerate(features):
            row, scaled = self._products[i], scale * x
            self._targets[i] += scaled * measured
            for j, other in enumerate(features):
                row[j] += scaled * other
        self._is_current = False

    def forget(self, kept: float) -> None:
        """Keep only this share of what is known."""
        self.weight *= kept
        for i in range(self._size):
            self._targets[i] *= kept
            row = self._products[i]
            for j in range(self._size):
                row[j] *= kept
        self._is_current = False

    def _solve(self) -> None:
        """The normal equations, without the coefficients that would come out negative: those are zero.

        The prior pulls each coefficient towards its guess, ever more gently as observations come in, in units of the
        guess itself. So a direction in which nothing was observed keeps the guess instead of running away.
        """
        strength = self._prior_weight / (1.0 + self.weight) ** 2
        pulls = [strength / max(c, 1e-12) ** 2 for c in self._prior]
        kept = list(range(self._size))
        while kept:
            matrix = [[self._products[i][j] + (pulls[i] if i == j else 0.0) for j in kept] for i in kept]
            solution = _solve_symmetric(matrix, [self._targets[i] + pulls[i] * self._prior[i] for i in kept])
            worst = min(range(len(kept)), key=lambda k: solution[k] * self._scale(kept[k]))
            if solution[worst] >= 0.0:
                break
            del kept[worst]
        self._coefficients = [0.0] * self._size
        for i, value in zip(kept, solution if kept else (), strict=True):
            self._coefficients[i] = value

    def _scale(self, i: int) -> float:
        """What one unit of coefficient i adds to a typical prediction: makes coefficients comparable."""
        return math.sqrt(self._products[i][i])


def _solve_symmetric(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gaussian elimination. The matrix is positive definite, so no pivoting is needed. Both are overwritten."""
    size = len(right)
    for i in range(size):
        pivot = matrix[i][i]
        for k in range(i + 1, size):
            factor = matrix[k][i] / pivot
            for j in range(i, size):
                matrix[k][j] -= factor * matrix[i][j]
            right[k] -= factor * right[i]
    for i in reversed(range(size)):
        right[i] = (right[i] - sum(matrix[i][j] * right[j] for j in range(i + 1, size))) / matrix[i][i]
    return right
