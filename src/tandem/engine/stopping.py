"""When a generation ends, decided at the very token that ends it: nothing is computed past a stop."""

from __future__ import annotations

from typing import NamedTuple

from tandem.core.request import Request
from tandem.core.types import FinishReason


class Stop(NamedTuple):
    reason: FinishReason
    detail: str | int | None
    """The stop string or stop token id; None for end-of-sequence and for length."""


def check_stop(request: Request, token_id: int) -> Stop | None:
    """Whether `token_id`, the newest of the request's output tokens, ends it.

    The text is followed below `min_tokens` too; the watch itself passes over a stop string that comes before that.
    """
    params = request.sampling
    completed = request.stop_watch.push((token_id,)) if request.stop_watch else None
    if request.num_output_tokens >= params.min_tokens:
        if token_id in request.eos_token_ids and not params.ignore_eos:
            return Stop("stop", None)
        if token_id in params.stop_token_ids:
            return Stop("stop", token_id)
    if completed is not None:
        return Stop("stop", completed)
    if request.num_output_tokens >= request.max_tokens:
        return Stop("length", None)
    return None
