"""How long prompts and answers seem, before anybody has tokenised them: learned from the usage of earlier answers.

Bytes for each token by model, output tokens by key and model. Both forget slowly, and both are bounded: what a client
can invent (model names don't reach here unresolved; keys are ours) can't grow them.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from tandem.gateway.routing.lengths import OutputLengths

_BYTES_PER_TOKEN: Final = 4.0
"""Of English with the JSON around it, until usage says better."""
_PRIOR_TOKENS: Final = 200.0
"""How much evidence it takes to move the ratio half of the way."""
_MAX_WEIGHT_TOKENS: Final = 200_000.0
"""Evidence is worth no more than this, so that a change of traffic is seen."""
_MIN_RATIO: Final = 0.25
_MAX_RATIO: Final = 64.0


@dataclass(slots=True)
class _Ratio:
    num_bytes: float
    num_tokens: float


class LengthEstimates:
    """Not for several threads at once."""

    def __init__(self, max_models: int = 1_000) -> None:
        self._max_models = max_models
        self._ratios: OrderedDict[str, _Ratio] = OrderedDict()
        self.outputs = OutputLengths()

    def prompt_tokens(self, model: str, num_bytes: int) -> int:
        """At least 1."""
        return max(1, round(num_bytes / self.bytes_per_token(model)))

    def bytes_per_token(self, model: str) -> float:
        ratio = self._ratios.get(model)
        return _BYTES_PER_TOKEN if ratio is None else ratio.num_bytes / ratio.num_tokens

    def output_tokens(self, key_id: str, model: str, max_output_tokens: int | None) -> int:
        """Expected of one answer: at least 1, at most what it may have."""
        return self.outputs.expected(key_id, model, max_output_tokens)

    def saw_prompt(self, model: str, num_bytes: int, num_tokens: int) -> None:
        """What usage said of a prompt. Figures that can't be are left out: some engines count wrongly."""
        if num_tokens <= 0 or not _MIN_RATIO <= num_bytes / num_tokens <= _MAX_RATIO:
            return
        ratio = self._ratios.get(model)
        if ratio is None:
            ratio = self._ratios[model] = _Ratio(_BYTES_PER_TOKEN * _PRIOR_TOKENS, _PRIOR_TOKENS)
            if len(self._ratios) > self._max_models:
                self._ratios.popitem(last=False)
        if ratio.num_tokens > _MAX_WEIGHT_TOKENS:
            ratio.num_bytes /= 2
            ratio.num_tokens /= 2
        ratio.num_bytes += num_bytes
        ratio.num_tokens += num_tokens

    def saw_output(self, key_id: str, model: str, num_tokens: int) -> None:
        """Of one answer that came to its own end."""
        self.outputs.observe(key_id, model, num_tokens)
