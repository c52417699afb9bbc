"""llama.cpp's own server, started with `--metrics`. Its sampling defaults are its own, and are never left to decide."""

from __future__ import annotations

from typing import Final

from tandem.config.deployment import EngineKind
from tandem.gateway.context import RequestContext
from tandem.gateway.replicas import fields as steps
from tandem.gateway.replicas.base import Fields, UpstreamError
from tandem.gateway.replicas.error_shapes import is_retryable, judge, read_told
from tandem.gateway.replicas.openai import OpenAIAdapter
from tandem.gateway.replicas.prometheus_text import Metrics, counter_names
from tandem.gateway.replicas.replica import Signals, Totals

_RUNNING: Final = "llamacpp:requests_processing"
_WAITING: Final = "llamacpp:requests_deferred"
_PROMPT: Final = "llamacpp:prompt_tokens"
_OUTPUT: Final = "llamacpp:tokens_predicted"
_SECONDS: Final = "llamacpp:tokens_predicted_seconds"
_RATE: Final = "llamacpp:predicted_tokens_seconds"
"""Tokens per second, whatever the name says."""
_WANTED: Final = (
    _RUNNING, _WAITING, _RATE,
    *(spelling for name in (_PROMPT, _OUTPUT, _SECONDS) for spelling in counter_names(name)),
)  # fmt: skip
_CODES: Final = {"exceed_context_size_error": "context_length_exceeded"}


class LlamaCppAdapter(OpenAIAdapter):
    kind: EngineKind = "llama.cpp"
    chat_limit = "max_tokens"
    dropped = steps.INTERNAL | steps.BOOKKEEPING
    sampling_defaults = {  # noqa: RUF012 -- a constant of the class
        "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, "repeat_penalty": 1.0,
    }  # fmt: skip
    """Its own: 0.8, 40, 0.95, 0.05."""

    def level(self, fields: Fields, request: RequestContext) -> None:
        """It has no salt: a tenant that mustn't share goes without cached prefixes."""
        if request.caller.cache_salt is not None:
            fields["cache_prompt"] = steps.raw(False)

    def ready_probe(self) -> tuple[str, str, bytes | None]:
        """503 while the model loads."""
        return "GET", "/health", None

    def metrics_path(self) -> str | None:
        return "/metrics"

    def parse_signals(self, body: bytes, now_s: float) -> Signals:
        metrics = Metrics(body, _WANTED)
        rate = metrics.total(_RATE)
        return Signals(
            taken_s=now_s,
            running=metrics.whole(_RUNNING),
            waiting=metrics.whole(_WAITING),
            tpot_s=1 / rate if rate else None,
            totals=Totals(
                tpot_sum_s=metrics.counter(_SECONDS),
                tpot_count=metrics.counter(_OUTPUT),
                prompt_tokens=metrics.counter(_PROMPT),
                output_tokens=metrics.counter(_OUTPUT),
            ),
        )

    def error(self, status: int, body: bytes) -> UpstreamError:
        told = read_told(body)
        error = judge(status, told)
        if told is None or told.type not in _CODES:
            return error
        return UpstreamError(
            error.status, error.message, "invalid_request_error", _CODES[told.type], error.param,
            is_retryable(error.status),
        )  # fmt: skip
