"""TensorRT-LLM by `trtllm-serve`, with `return_perf_metrics`; and behind Triton, whose metrics have other names.

`/metrics` is JSON (statistics of the newest iterations) and not Prometheus's text, which is at `/prometheus/metrics`.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tandem.config.deployment import EngineKind
from tandem.gateway.context import RequestContext
from tandem.gateway.replicas import fields as steps
from tandem.gateway.replicas.base import Fields
from tandem.gateway.replicas.openai import OpenAIAdapter
from tandem.gateway.replicas.prometheus_text import Metrics, counter_names
from tandem.gateway.replicas.replica import Signals, Totals

_RUNNING: Final = "trtllm_num_requests_running"
_WAITING: Final = "trtllm_num_requests_waiting"
_USAGE: Final = "trtllm_kv_cache_utilization"
_MAX_BLOCKS: Final = "trtllm_kv_cache_max_blocks"
_FREE_BLOCKS: Final = "trtllm_kv_cache_free_blocks"
_BLOCK_SIZE: Final = "trtllm_kv_cache_tokens_per_block"
_HIT_RATE: Final = "trtllm_kv_cache_hit_rate"
_TTFT: Final = "trtllm_time_to_first_token_seconds"
_TPOT: Final = "trtllm_time_per_output_token_seconds"
_QUEUE: Final = "trtllm_request_queue_time_seconds"
_COUNTERS: Final = (
    "trtllm_prompt_tokens", "trtllm_generation_tokens", "trtllm_num_paused_requests",
)  # fmt: skip
_TRITON_REQUESTS: Final = "nv_trt_llm_request_metrics"
_TRITON_BLOCKS: Final = "nv_trt_llm_kv_cache_block_metrics"
_WANTED: Final = (
    _RUNNING, _WAITING, _USAGE, _MAX_BLOCKS, _FREE_BLOCKS, _BLOCK_SIZE, _HIT_RATE, _TRITON_REQUESTS, _TRITON_BLOCKS,
    *(f"{name}_{part}" for name in (_TTFT, _TPOT, _QUEUE) for part in ("sum", "count")),
    *(spelling for name in _COUNTERS for spelling in counter_names(name)),
)  # fmt: skip


class TensorRTLLMAdapter(OpenAIAdapter):
    kind: EngineKind = "tensorrt-llm"
    chat_limit = "max_completion_tokens"
    dropped = steps.INTERNAL | steps.BOOKKEEPING
    """It refuses requests with fields that it doesn't know."""
    sampling_defaults = {"temperature": 1.0, "top_p": 1.0}  # noqa: RUF012 -- a constant of the class

    def level(self, fields: Fields, request: RequestContext) -> None:
        if request.caller.cache_salt is not None:
            fields["cache_salt"] = steps.raw(request.caller.cache_salt)

    def ready_probe(self) -> tuple[str, str, bytes | None]:
        return "GET", "/health", None

    def deep_probe(self, model: str) -> tuple[str, str, bytes | None] | None:
        """Runs a chat of one token."""
        return "GET", "/health_generate", None

    def metrics_path(self) -> str | None:
        return "/prometheus/metrics"

    def fallback_metrics_path(self) -> str | None:
        return "/metrics"

    def parse_signals(self, body: bytes, now_s: float) -> Signals:
        if body.lstrip()[:1] in (b"[", b"{"):
            return _of_iterations(body, now_s)
        metrics = Metrics(body, _WANTED)
        if metrics.series(_TRITON_REQUESTS):
            return _of_triton(metrics, now_s)
        return Signals(
            taken_s=now_s,
            running=metrics.whole(_RUNNING),
            waiting=metrics.whole(_WAITING),
            kv_usage=metrics.share(_USAGE),
            block_size=metrics.whole(_BLOCK_SIZE) or None,
            blocks_free=metrics.whole(_FREE_BLOCKS),
            blocks_total=metrics.whole(_MAX_BLOCKS),
            prefix_hit_rate=metrics.share(_HIT_RATE),
            totals=Totals(
                ttft_sum_s=metrics.total(f"{_TTFT}_sum"),
                ttft_count=metrics.total(f"{_TTFT}_count"),
                tpot_sum_s=metrics.total(f"{_TPOT}_sum"),
                tpot_count=metrics.total(f"{_TPOT}_count"),
                queue_sum_s=metrics.total(f"{_QUEUE}_sum"),
                queue_count=metrics.total(f"{_QUEUE}_count"),
                prompt_tokens=metrics.counter("trtllm_prompt_tokens"),
                output_tokens=metrics.counter("trtllm_generation_tokens"),
                preemptions=metrics.counter("trtllm_num_paused_requests"),
            ),
        )


def _of_triton(metrics: Metrics, now_s: float) -> Signals:
    """Scheduled requests run; "active" is both together."""
    return Signals(
        taken_s=now_s,
        running=_labelled(metrics, "request_type", "scheduled"),
        waiting=_labelled(metrics, "request_type", "waiting"),
        kv_usage=_fraction(metrics),
    )


def _labelled(metrics: Metrics, label: str, wanted: str) -> int | None:
    values = [series.value for series in metrics.series(_TRITON_REQUESTS) if series.label(label) == wanted]
    return round(sum(values)) if values and all(0 <= value < float("inf") for value in values) else None


def _fraction(metrics: Metrics) -> float | None:
    values = [s.value for s in metrics.series(_TRITON_BLOCKS) if s.label("kv_cache_block_type") == "fraction"]
    return max(values) if values and all(0 <= value <= 1 for value in values) else None


def _of_iterations(body: bytes, now_s: float) -> Signals:
    """The newest entry; an idle engine has none, which says nothing."""
    try:
        content: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"the iteration statistics can't be read: {error}") from None
    entries = content if isinstance(content, list) else [content]
    newest = entries[-1] if entries and isinstance(entries[-1], dict) else {}
    cache = newest.get("kvCacheStats")
    cache = cache if isinstance(cache, dict) else {}
    used, most = _number(cache, "usedNumBlocks"), _number(cache, "maxNumBlocks")
    return Signals(
        taken_s=now_s,
        running=_number(newest, "numActiveRequests"),
        waiting=_number(newest, "numQueuedRequests"),
        kv_usage=used / most if used is not None and most and used <= most else None,
        block_size=_number(cache, "tokensPerBlock") or None,
        blocks_free=_number(cache, "freeNumBlocks"),
        blocks_total=most,
    )


def _number(entry: dict[str, Any], name: str) -> int | None:
    value = entry.get(name)
    return round(value) if isinstance(value, int | float) and 0 <= value < float("inf") else None
