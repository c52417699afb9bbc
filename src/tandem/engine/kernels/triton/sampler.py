"""`engine/sampling/sampler.py` with the rows kept on the GPU: only chosen tokens, and reports asked for, come back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

import torch
from torch import Tensor

from tandem.core.request import Request
from tandem.engine.kernels.triton.sampling import DrawParams, argmax, draw, draw_likely
from tandem.engine.sampling.adjust import adjust, needs_adjusting
from tandem.engine.sampling.draw import draw as draw_on_host
from tandem.engine.sampling.sampler import Row, Samples, reports


@torch.inference_mode()
def sample(logits: Tensor, rows: Sequence[Row], greedy: Tensor | None = None) -> Samples:
    """One token for each of `rows` from float32 logits [R, V], which are left unchanged.

    greedy: int32 [R], the argmax of each row where the caller has it already.
    """
    token_ids = [-1] * len(rows)
    others = [index for index, row in enumerate(rows) if not row.is_plain]
    if len(others) < len(rows):
        best: list[int] = (argmax(logits).token if greedy is None else greedy).tolist()
        token_ids = [best[row.logit_row] for row in rows]
    if others:
        for index, token in zip(others, _choose(logits, [rows[index] for index in others]), strict=True):
            token_ids[index] = token
    return Samples(token_ids, reports(logits, rows, token_ids))


def _choose(logits: Tensor, rows: list[Row]) -> list[int]:
    """Tokens for rows that are drawn, adjusted or reported; scores of all of them are copied once."""
    scores = logits.index_select(0, torch.tensor([row.logit_row for row in rows], device=logits.device))
    for row, own in zip(rows, scores, strict=True):
        if needs_adjusting(row.request):
            adjust(own, row.request)
    chosen = argmax(scores).token
    is_greedy = [row.request.sampling.is_greedy for row in rows]
    narrows = [not greedy and _narrows(row.request) for greedy, row in zip(is_greedy, rows, strict=True)]
    draws = [not greedy and not narrow for greedy, narrow in zip(is_greedy, narrows, strict=True)]
    for choose, which in ((draw, draws), (draw_likely, narrows)):
        if any(which):
            mine = torch.tensor(list(compress(range(len(rows)), which)), device=logits.device)
            params = draw_params(list(compress(rows, which)), logits.device)
            chosen[mine] = choose(scores.index_select(0, mine), params)
    token_ids: list[int] = chosen.tolist()
    return [
        _draw_undecided(own, row) if token < 0 else token
        for token, own, row in zip(token_ids, scores, rows, strict=True)
    ]


def _narrows(request: Request) -> bool:
    params = request.sampling
    return params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0


def draw_params(rows: Sequence[Row], device: torch.device) -> DrawParams:
    """In one upload: float64 holds all of them exactly."""
    wanted = [row.request.sampling for row in rows]
    numbers = [
        [p.temperature for p in wanted],
        [p.top_k for p in wanted],
        [p.top_p for p in wanted],
        [p.min_p for p in wanted],
        [row.uniform() for row in rows],
    ]
    temperature, top_k, top_p, min_p, uniforms = torch.tensor(numbers, dtype=torch.float64, device=device)
    return DrawParams(temperature.float(), top_k.int(), top_p, min_p.float(), uniforms)


def _draw_undecided(scores: Tensor, row: Row) -> int:
    """A likely set beyond the candidates: a flat distribution with a wide top_p. Rare enough for the host."""
    return draw_on_host(scores.cpu().numpy(), row.request.sampling, row.uniform())
