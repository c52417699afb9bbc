"""vLLM. Its `/health` can answer 200 while the engine loop is dead, so a token is asked for now and then."""

from __future__ import annotations

from typing import Final

from tandem.config.deployment import EngineKind
from tandem.gateway.context import RequestContext
from tandem.gateway.replicas import fields as steps
from tandem.gateway.replicas.base import Call, Fields, UpstreamError
from tandem.gateway.replicas.error_shapes import judge, read_told
from tandem.gateway.replicas.openai import OpenAIAdapter, failure_of, one_token_failure, one_token_request
from tandem.gateway.replicas.prometheus_text import Metrics, counter_names, whole
from tandem.gateway.replicas.replica import Signals, Totals

_RUNNING: Final = "vllm:num_requests_running"
_WAITING: Final = "vllm:num_requests_waiting"
_KV_USAGE: Final = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
_TTFT: Final = "vllm:time_to_first_token_seconds"
_TPOT: Final = ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")
"""The newer name first. The newer one is observed for each token, the older one too."""
_QUEUE: Final = "vllm:request_queue_time_seconds"
_COUNTERS: Final = (
    "vllm:prompt_tokens", "vllm:generation_tokens", "vllm:num_preemptions", "vllm:prefix_cache_queries",
    "vllm:prefix_cache_hits",
)  # fmt: skip
_GEOMETRY: Final = "vllm:cache_config_info"
_WANTED: Final = (
    _RUNNING, _WAITING, *_KV_USAGE, _GEOMETRY,
    *(f"{name}_{part}" for name in (_TTFT, *_TPOT, _QUEUE) for part in ("sum", "count")),
    *(spelling for name in _COUNTERS for spelling in counter_names(name)),
)  # fmt: skip
_DEEP_PATH: Final = "/v1/completions"
_BATCH_PRIORITY: Final = 1
"""Lower is sooner; interactive requests have the engine's default, 0."""


class VLLMAdapter(OpenAIAdapter):
    kind: EngineKind = "vllm"
    chat_limit = "max_completion_tokens"
    dropped = steps.INTERNAL | steps.BOOKKEEPING
    sampling_defaults = {  # noqa: RUF012 -- a constant of the class
        "temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0,
    }  # fmt: skip
    """Else the model's `generation_config.json` would decide."""

    def level(self, fields: Fields, request: RequestContext) -> None:
        if request.caller.cache_salt is not None:
            fields["cache_salt"] = steps.raw(request.caller.cache_salt)
        if self.options.has_priorities and request.service_class == "batch":
            fields["priority"] = steps.raw(_BATCH_PRIORITY)

    def ready_probe(self) -> tuple[str, str, bytes | None]:
        return "GET", "/health", None

    def deep_probe(self, model: str) -> tuple[str, str, bytes | None] | None:
        return "POST", _DEEP_PATH, one_token_request(model)

    def probe_failure(self, path: str, status: int, body: bytes, model: str) -> str | None:
        return one_token_failure(status, body) if path == _DEEP_PATH else failure_of(status, body)

    def metrics_path(self) -> str | None:
        return "/metrics"

    def parse_signals(self, body: bytes, now_s: float) -> Signals:
        metrics = Metrics(body, _WANTED)
        geometry = metrics.series(_GEOMETRY)
        blocks_total = whole(geometry[0].label("num_gpu_blocks")) if geometry else None
        usage = metrics.share(*_KV_USAGE)
        return Signals(
            taken_s=now_s,
            running=metrics.whole(_RUNNING),
            waiting=metrics.whole(_WAITING),
            kv_usage=usage,
            block_size=whole(geometry[0].label("block_size")) if geometry else None,
            blocks_total=blocks_total,
            blocks_free=None if blocks_total is None or usage is None else round(blocks_total * (1 - usage)),
            totals=Totals(
                ttft_sum_s=metrics.total(f"{_TTFT}_sum"),
                ttft_count=metrics.total(f"{_TTFT}_count"),
                tpot_sum_s=metrics.total(*(f"{name}_sum" for name in _TPOT)),
                tpot_count=metrics.total(*(f"{name}_count" for name in _TPOT)),
                queue_sum_s=metrics.total(f"{_QUEUE}_sum"),
                queue_count=metrics.total(f"{_QUEUE}_count"),
                prompt_tokens=metrics.counter("vllm:prompt_tokens"),
                output_tokens=metrics.counter("vllm:generation_tokens"),
                preemptions=metrics.counter("vllm:num_preemptions"),
                prefix_queries=metrics.counter("vllm:prefix_cache_queries"),
                prefix_hits=metrics.counter("vllm:prefix_cache_hits"),
            ),
        )

    def error(self, status: int, body: bytes) -> UpstreamError:
        """A context that is too long has a code of its own at OpenAI, and none at vLLM."""
        error = judge(status, read_told(body))
        if error.status == 400 and error.code is None and "maximum context length" in error.message:
            return UpstreamError(400, error.message, error.type, "context_length_exceeded", error.param)
        return error

    def sleep_call(self) -> Call | None:
        """Level 1: weights to the host's memory, so waking takes a second. Only in its development mode."""
        return Call("POST", "/sleep?level=1")

    def wake_call(self) -> Call | None:
        return Call("POST", "/wake_up")

    def asleep_call(self) -> Call | None:
        return Call("GET", "/is_sleeping")
