"""How long prompts and answers are: `512`, `128:1024` (uniform), or `normal:512:128` (mean, standard deviation)."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tandem.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of token counts. No draw is below 1."""

    low: int
    high: int
    mean: float | None = None
    """None: uniform between `low` and `high`. Else normal, cut to them."""
    deviation: float = 0.0

    def draw(self, rng: random.Random) -> int:
        if self.mean is None:
            return rng.randint(self.low, self.high)
        return min(self.high, max(self.low, round(rng.gauss(self.mean, self.deviation))))

    @property
    def average(self) -> float:
        return (self.low + self.high) / 2 if self.mean is None else self.mean


def parse_lengths(text: str, name: str) -> Lengths:
    """Raises `ConfigError` that names the setting."""
    kind, *rest = text.split(":")
    try:
        if kind == "normal":
            mean, deviation = (float(part) for part in rest)
            found = Lengths(1, max(1, round(mean + 4 * deviation)), mean, deviation)
        else:
            low, high = (int(kind), int(":".join(rest))) if rest else (int(kind), int(kind))
            found = Lengths(low, high)
    except ValueError:
        found = Lengths(0, 0)
    if not 1 <= found.low <= found.high or found.deviation < 0:
        raise ConfigError(f"{name} is {text!r}; it must be a length such as 512, a range 128:1024, or normal:512:128.")
    return found
