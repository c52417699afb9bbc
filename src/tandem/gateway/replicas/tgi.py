"""Text Generation Inference v3. In maintenance mode, and worth no more than this."""

from __future__ import annotations

from typing import Final

from tandem.config.deployment import EngineKind
from tandem.gateway.context import RequestContext
from tandem.gateway.replicas import fields as steps
from tandem.gateway.replicas.base import Fields, UpstreamError
from tandem.gateway.replicas.error_shapes import judge, read_told
from tandem.gateway.replicas.openai import OpenAIAdapter
from tandem.gateway.replicas.prometheus_text import Metrics
from tandem.gateway.replicas.replica import Signals, Totals

_RUNNING: Final = "tgi_batch_current_size"
_WAITING: Final = "tgi_queue_size"
_TOKENS: Final = "tgi_batch_current_max_tokens"
_MAX_TOKENS: Final = "tgi_batch_max_total_tokens"
_TPOT: Final = "tgi_request_mean_time_per_token_duration"
_QUEUE: Final = "tgi_request_queue_duration"
_PROMPT: Final = "tgi_request_input_length"
_OUTPUT: Final = "tgi_request_generated_tokens"
_WANTED: Final = (
    _RUNNING, _WAITING, _TOKENS, _MAX_TOKENS, f"{_PROMPT}_sum", f"{_OUTPUT}_sum",
    *(f"{name}_{part}" for name in (_TPOT, _QUEUE) for part in ("sum", "count")),
)  # fmt: skip
_STATUSES: Final = {"overloaded": 429, "validation": 400, "generation": 500, "incomplete_generation": 500}
"""error_type → the status that OpenAI would have given; TGI gives 422 and 424 for two of them."""


class TGIAdapter(OpenAIAdapter):
    """It can't salt its prefix cache, so tenants that must not share one need pools of their own."""

    kind: EngineKind = "tgi"
    chat_limit = "max_tokens"
    dropped = steps.INTERNAL | steps.BOOKKEEPING
    sampling_defaults = {"temperature": 1.0}  # noqa: RUF012 -- a constant of the class

    def level(self, fields: Fields, request: RequestContext) -> None:
        """It refuses a `top_p` of 1, which is what leaving it out means."""
        if steps.is_given(fields, "top_p") and bytes(fields["top_p"]) in (b"1", b"1.0"):
            del fields["top_p"]

    def ready_probe(self) -> tuple[str, str, bytes | None]:
        """Runs a generation when idle."""
        return "GET", "/health", None

    def metrics_path(self) -> str | None:
        return "/metrics"

    def parse_signals(self, body: bytes, now_s: float) -> Signals:
        metrics = Metrics(body, _WANTED)
        tokens, most = metrics.total(_TOKENS), metrics.total(_MAX_TOKENS)
        return Signals(
            taken_s=now_s,
            running=metrics.whole(_RUNNING),
            waiting=metrics.whole(_WAITING),
            kv_usage=min(1.0, tokens / most) if tokens is not None and most else None,
            totals=Totals(
                tpot_sum_s=metrics.total(f"{_TPOT}_sum"),
                tpot_count=metrics.total(f"{_TPOT}_count"),
                queue_sum_s=metrics.total(f"{_QUEUE}_sum"),
                queue_count=metrics.total(f"{_QUEUE}_count"),
                prompt_tokens=metrics.total(f"{_PROMPT}_sum"),
                output_tokens=metrics.total(f"{_OUTPUT}_sum"),
            ),
        )

    def error(self, status: int, body: bytes) -> UpstreamError:
        told = read_told(body)
        if told is not None and told.type in _STATUSES:
            return judge(_STATUSES[told.type], told)
        return judge(status, told)
