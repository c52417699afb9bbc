"""SGLang, started with `--enable-metrics`. Higher priority is sooner here; errors may come as events of a stream."""

from __future__ import annotations

from typing import Final

import msgspec

from tandem.config.deployment import EngineKind
from tandem.gateway.context import RequestContext
from tandem.gateway.replicas import fields as steps
from tandem.gateway.replicas.base import Call, Fields
from tandem.gateway.replicas.openai import OpenAIAdapter
from tandem.gateway.replicas.prometheus_text import Metrics, counter_names, whole
from tandem.gateway.replicas.replica import Signals, Totals

_RUNNING: Final = "sglang:num_running_reqs"
_WAITING: Final = "sglang:num_queue_reqs"
_USAGE: Final = "sglang:token_usage"
_HIT_RATE: Final = "sglang:cache_hit_rate"
_TTFT: Final = "sglang:time_to_first_token_seconds"
_TPOT: Final = ("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds")
_QUEUE: Final = "sglang:queue_time_seconds"
_GEOMETRY: Final = "sglang:cache_config_info"
_COUNTERS: Final = (
    "sglang:prompt_tokens", "sglang:generation_tokens", "sglang:num_retracted_requests", "sglang:cached_tokens",
)  # fmt: skip
_WANTED: Final = (
    _RUNNING, _WAITING, _USAGE, _HIT_RATE, _GEOMETRY,
    *(f"{name}_{part}" for name in (_TTFT, *_TPOT, _QUEUE) for part in ("sum", "count")),
    *(spelling for name in _COUNTERS for spelling in counter_names(name)),
)  # fmt: skip
_INTERACTIVE_PRIORITY: Final = 1
"""Higher is sooner."""


class SGLangAdapter(OpenAIAdapter):
    kind: EngineKind = "sglang"
    chat_limit = "max_completion_tokens"
    dropped = steps.INTERNAL | steps.BOOKKEEPING
    sampling_defaults = {  # noqa: RUF012 -- a constant of the class
        "temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0,
    }  # fmt: skip
    """Else the model's `generation_config.json` would decide."""

    def level(self, fields: Fields, request: RequestContext) -> None:
        if request.caller.cache_salt is not None:
            fields["cache_salt"] = steps.raw(request.caller.cache_salt)
        if request.num_answers == 1:  # one id would have to become several
            fields["rid"] = steps.raw(request.request_id)
        if self.options.has_priorities:
            fields["priority"] = steps.raw(_INTERACTIVE_PRIORITY if request.service_class == "interactive" else 0)

    def ready_probe(self) -> tuple[str, str, bytes | None]:
        """Generates a token, or sees that one was generated just now. `/ping` and `/health` promise less."""
        return "GET", "/health_generate", None

    def metrics_path(self) -> str | None:
        return "/metrics"

    def parse_signals(self, body: bytes, now_s: float) -> Signals:
        metrics = Metrics(body, _WANTED)
        geometry = metrics.series(_GEOMETRY)
        blocks_total = whole(geometry[0].label("num_pages")) if geometry else None
        usage = metrics.share(_USAGE)
        return Signals(
            taken_s=now_s,
            running=metrics.whole(_RUNNING),
            waiting=metrics.whole(_WAITING),
            kv_usage=usage,
            block_size=whole(geometry[0].label("page_size")) if geometry else None,
            blocks_total=blocks_total,
            blocks_free=None if blocks_total is None or usage is None else round(blocks_total * (1 - usage)),
            prefix_hit_rate=metrics.share(_HIT_RATE),
            totals=Totals(
                ttft_sum_s=metrics.total(f"{_TTFT}_sum"),
                ttft_count=metrics.total(f"{_TTFT}_count"),
                tpot_sum_s=metrics.total(*(f"{name}_sum" for name in _TPOT)),
                tpot_count=metrics.total(*(f"{name}_count" for name in _TPOT)),
                queue_sum_s=metrics.total(f"{_QUEUE}_sum"),
                queue_count=metrics.total(f"{_QUEUE}_count"),
                prompt_tokens=metrics.counter("sglang:prompt_tokens"),
                output_tokens=metrics.counter("sglang:generation_tokens"),
                preemptions=metrics.counter("sglang:num_retracted_requests"),
                prefix_queries=metrics.counter("sglang:prompt_tokens"),
                prefix_hits=metrics.counter("sglang:cached_tokens"),
            ),
        )

    def cancel_call(self, request: RequestContext) -> Call | None:
        if request.num_answers != 1:
            return None
        return Call("POST", "/abort_request", msgspec.json.encode({"rid": request.request_id}))

    def sleep_call(self) -> Call | None:
        """Gives the device's memory back; needs `--enable-memory-saver`."""
        return Call("POST", "/release_memory_occupation", b"{}")

    def wake_call(self) -> Call | None:
        return Call("POST", "/resume_memory_occupation", b"{}")
