"""Chooses a token for each row of logits, as each row's request wants it.

Rows are independent: a row's token depends on its logits, its request and its position only. Greedy rows without
adjustments, nearly all rows of nearly all steps, share one argmax; the others are taken one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tandem.core.request import Request
from tandem.engine.messages import TokenLogprobs
from tandem.engine.sampling.adjust import adjust, needs_adjusting
from tandem.engine.sampling.draw import draw
from tandem.engine.sampling.logprobs import token_logprobs
from tandem.engine.sampling.random import uniform


class Row(NamedTuple):
    """One token to choose: for answer number `answer` of a request, from row `logit_row` of the logits."""

    request: Request
    answer: int
    logit_row: int

    @property
    def is_plain(self) -> bool:
        """Greedy, unadjusted and unreported: the argmax is all there is to it."""
        params = self.request.sampling
        return params.is_greedy and params.logprobs is None and not needs_adjusting(self.request)

    def uniform(self) -> float:
        """The random number of this token."""
        seed = self.request.sampling.seed
        assert seed is not None, "the front draws a seed for every request"
        return uniform(seed, self.answer, self.request.num_output_tokens)

    def adjusted(self, logits: Tensor) -> Tensor:
        """The row's scores as its request wants them changed: float32 [V], a copy."""
        scores = logits[self.logit_row].clone()
        adjust(scores, self.request)
        return scores


class Samples(NamedTuple):
    token_ids: list[int]
    logprobs: list[TokenLogprobs | None] | None


@torch.inference_mode()
def sample(logits: Tensor, rows: Sequence[Row]) -> Samples:
    """One token for each of `rows` from float32 logits [R, V], which are left unchanged."""
    greedy = logits.argmax(-1).tolist()
    token_ids = [greedy[row.logit_row] if row.is_plain else _choose(logits, row) for row in rows]
    return Samples(token_ids, reports(logits, rows, token_ids))


def _choose(logits: Tensor, row: Row) -> int:
    request = row.request
    scores = row.adjusted(logits) if needs_adjusting(request) else logits[row.logit_row]
    if request.sampling.is_greedy:
        return int(scores.argmax())
    return draw(scores.cpu().numpy(), request.sampling, row.uniform())


def reports(logits: Tensor, rows: Sequence[Row], token_ids: Sequence[int]) -> list[TokenLogprobs | None] | None:
    """What to say of the chosen tokens' probabilities, beside `rows`; None where nobody asked."""
    if all(row.request.sampling.logprobs is None for row in rows):
        return None
    return [_report(logits, row, token) for row, token in zip(rows, token_ids, strict=True)]


def _report(logits: Tensor, row: Row, token_id: int) -> TokenLogprobs | None:
    wanted = row.request.sampling.logprobs
    if wanted is None:
        return None
    return token_logprobs(logits[row.logit_row : row.logit_row + 1], [token_id], wanted)[0]
