"""How much a network loses in few bits: perplexity, divergence and agreement with the reference on the same text.

Teacher-forced: both see the text's own tokens, whatever they would have said. Knows no engine: logits come from
callables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from tandem.core.errors import ConfigError

LogitsFn = Callable[[Tensor], Tensor]
"""Token ids [T] of a sequence from its beginning → logits [T, V], float."""

SEQUENCE_LENGTH = 512
ROWS = 64
"""Rows of logits that are compared at once: a vocabulary of 262,144 in float64 is 2 MiB a row."""
MIN_TOKENS = 16_000
"""Fewer held-out tokens are too few to judge a build by."""
MAX_KL, MIN_TOP1 = 0.02, 0.95


@dataclass(frozen=True, slots=True)
class Quality:
    """Against a reference, over tokens of which each foretells the next."""

    perplexity_reference: float
    perplexity: float
    mean_kl: float
    """Mean over tokens of KL(reference ‖ candidate), in nats."""
    top1_agreement: float
    """Share of tokens for which both hold the same next one for likeliest."""
    num_tokens: int
    max_kl: float
    """Of a single token."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a build may lose."""

    mean_kl: float = MAX_KL
    top1_agreement: float = MIN_TOP1

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mean_kl) and self.mean_kl >= 0):
            raise ConfigError(f"the limit on KL is {self.mean_kl}; it must be a number of at least 0.")
        if not 0 <= self.top1_agreement <= 1:
            raise ConfigError(f"the limit on top-1 agreement is {self.top1_agreement}; it must be within 0 to 1.")


def passes(quality: Quality, limits: Limits | None = None) -> bool:
    """NaN passes nothing."""
    limits = limits or Limits()
    return quality.mean_kl <= limits.mean_kl and quality.top1_agreement >= limits.top1_agreement


def verdict(quality: Quality, limits: Limits | None = None) -> str:
    """Pass or fail, in one sentence."""
    limits = limits or Limits()
    figures = f"mean KL {quality.mean_kl:.4f}, top-1 agreement {quality.top1_agreement:.1%}"
    allowed = f"KL {limits.mean_kl:g} and {limits.top1_agreement:.1%}"
    if passes(quality, limits):
        return f"Quality is within the limits ({allowed}): {figures} on {quality.num_tokens:,} tokens."
    missed = [] if quality.mean_kl <= limits.mean_kl else ["KL"]
    missed += [] if quality.top1_agreement >= limits.top1_agreement else ["top-1 agreement"]
    return (
        f"Quality misses the limits ({allowed}) in {' and '.join(missed)}: {figures} on {quality.num_tokens:,} tokens."
    )


def measure(
    reference: LogitsFn,
    candidate: LogitsFn,
    tokens: Tensor,
    *,
    sequence_length: int = SEQUENCE_LENGTH,
    progress: Callable[[int, int], None] | None = None,
) -> Quality:
    """tokens: sequences [S, L], or a text's ids [N], which are cut into such. Memory: one sequence's logits of each."""
    pieces = torch.split(tokens, sequence_length) if tokens.dim() == 1 else tuple(tokens)
    sums = Comparison()
    for index, piece in enumerate(pieces):
        if len(piece) > 1:
            with torch.inference_mode():
                sums.add(reference(piece)[:-1], candidate(piece)[:-1], piece[1:])
        if progress is not None:
            progress(index + 1, len(pieces))
    return sums.result()


class Comparison:
    """The running sums of one candidate, a sequence at a time."""

    def __init__(self) -> None:
        self._nll_reference = self._nll = self._kl = self._max_kl = 0.0
        self._agreed = self._count = 0

    def add(self, reference: Tensor, candidate: Tensor, following: Tensor) -> None:
        """Logits [T, V] of the same tokens, and the token that follows each, [T]."""
        assert reference.shape == candidate.shape, (reference.shape, candidate.shape)
        for rows in _row_pieces(len(following)):
            wanted, got = (log_softmax(logits[rows].float(), -1) for logits in (reference, candidate))
            kl = (wanted.exp() * (wanted - got)).sum(-1)
            nexts = following[rows, None].long()
            self._nll_reference -= float(wanted.gather(1, nexts).double().sum())
            self._nll -= float(got.gather(1, nexts).double().sum())
            self._kl += float(kl.double().sum())
            self._max_kl = max(self._max_kl, float(kl.max()))
            self._agreed += int((wanted.argmax(-1) == got.argmax(-1)).sum())
            self._count += len(nexts)

    def result(self) -> Quality:
        if not self._count:
            raise ConfigError("there are no tokens to measure quality on; at least two are needed.")
        count = self._count
        return Quality(
            perplexity_reference=_exp(self._nll_reference / count),
            perplexity=_exp(self._nll / count),
            mean_kl=self._kl / count,
            top1_agreement=self._agreed / count,
            num_tokens=count,
            max_kl=self._max_kl,
        )


def _row_pieces(count: int) -> Iterator[slice]:
    return (slice(start, min(start + ROWS, count)) for start in range(0, count, ROWS))


def _exp(mean: float) -> float:
    return math.exp(mean) if mean < 700 else math.inf
