"""Which rows of a step's output are wanted, and for what: tokens to choose, and prompt positions to score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tandem.core.request import Request
from tandem.engine.sampling.sampler import Row
from tandem.engine.scheduler import ScheduledRequest


class PromptPart(NamedTuple):
    """Rows [begin, end) of the step predict `next_tokens`, the prompt tokens behind them."""

    request: Request
    begin: int
    end: int
    next_tokens: list[int]
    num_top: int


class WantedRows(NamedTuple):
    logit_rows: list[int]
    """Token rows of the step whose logits choose a token."""
    samples: list[Row]
    """Tokens to choose; n of them share a row where a prompt is about to fork."""
    prompt_parts: list[PromptPart]


def wanted_rows(scheduled: Sequence[ScheduledRequest]) -> WantedRows:
    """Rows in the order of the plan, which is the order in which the core takes the tokens."""
    wanted = WantedRows([], [], [])
    row = 0
    for s in scheduled:
        if s.samples:
            first = s.request.index
            wanted.samples.extend(
                Row(s.request, first + answer, len(wanted.logit_rows)) for answer in range(s.num_samples)
            )
            wanted.logit_rows.append(row + s.num_tokens - 1)
        if s.request.sampling.prompt_logprobs is not None:
            _add_prompt_part(wanted, s, row)
        row += s.num_tokens
    return wanted


def _add_prompt_part(wanted: WantedRows, s: ScheduledRequest, row: int) -> None:
    next_tokens = s.request.prompt_token_ids[s.start + 1 : s.start + s.num_tokens + 1]
    if next_tokens:
        num_top = s.request.sampling.prompt_logprobs or 0
        wanted.prompt_parts.append(PromptPart(s.request, row, row + len(next_tokens), next_tokens, num_top))
