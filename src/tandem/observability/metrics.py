"""The engine's metrics, by name. It knows no engine: whoever has a number hands it over.

Every value of every label comes from a closed set (plus the one model name of the process), so the number of series is
fixed at start, whatever clients send. Each name ends in its base unit, and counters in `_total`.
"""

from __future__ import annotations

from typing import Final, Literal, Protocol, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

from tandem.core.types import FinishReason, ServiceClass

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
RefusalReason = Literal[
    "invalid", "too_large", "unauthorized", "not_found", "queue_full", "loading", "draining", "engine_down", "other"
]

disable_created_metrics()  # type: ignore[no-untyped-call]  # a series for each counter that nobody reads

_LATENCY_S: Final = (
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
_TOKEN_GAP_S: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 10.0,
)  # fmt: skip
_POWERS: Final = tuple(float(1 << exponent) for exponent in range(17))


class EngineGauges(Protocol):
    """What an engine reports about itself after a step: gauges as they are, counters since it started."""

    num_running: dict[str, int]
    num_waiting: dict[str, int]
    num_blocks: int
    num_free_blocks: int
    num_cached_blocks: int
    num_held_blocks: int
    num_allocated_slots: int
    num_empty_slots: int
    prefix_queries: int
    prefix_hits: int
    num_preemptions: int
    num_recomputed_tokens: int
    num_wasted_tokens: int


class RequestTimes(Protocol):
    """Where a finished request's time went, in seconds."""

    queue_s: float
    prefill_s: float
    decode_s: float


class EngineMetrics:
    """One process's metrics in a registry of their own. Not for several threads at once, but for `render`."""

    def __init__(self, model: str) -> None:
        self._registry = CollectorRegistry()
        self._model = model
        self._seen: dict[str, int] = {}
        self._create_gauges()
        self._create_request_metrics()
        self._create_step_metrics()
        self._create_cache_counters()

    def render(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self._registry)

    # What happens to a request: each is called once for it, but the token gap.

    def prompt_computed(self, num_prompt_tokens: int, num_cached_tokens: int) -> None:
        self._prompt_tokens.inc(num_prompt_tokens)
        self._cached_tokens.inc(num_cached_tokens)

    def first_token(self, since_arrival_s: float) -> None:
        self._ttft.observe(since_arrival_s)

    def token_gap(self, gap_s: float) -> None:
        """Between two outputs of one answer; the only call made for each token."""
        self._token_gap.observe(gap_s)

    def finished(self, reason: FinishReason, num_output_tokens: int) -> None:
        """The end of every accepted request, good or bad."""
        self._finished[reason].inc()
        self._generation_tokens.inc(num_output_tokens)

    def completed(self, since_arrival_s: float, per_token_s: float | None, times: RequestTimes | None) -> None:
        """The end of a request that was answered in full."""
        self._e2e.observe(since_arrival_s)
        if per_token_s is not None:
            self._per_token.observe(per_token_s)
        if times is not None:
            self._queue.observe(times.queue_s)
            self._prefill.observe(times.prefill_s)
            self._decode.observe(times.decode_s)

    def refused(self, reason: RefusalReason) -> None:
        self._refused[reason].inc()

    def wasted(self, num_tokens: int) -> None:
        self._wasted.inc(num_tokens)

    # What happens in the engine.

    def step(self, duration_s: float, num_tokens: int, num_seqs: int) -> None:
        self._step_time.observe(duration_s)
        self._step_tokens.observe(num_tokens)
        self._step_seqs.observe(num_seqs)

    def update(self, stats: EngineGauges) -> None:
        """Take over the engine's newest report. Called when somebody reads the metrics, not at every step."""
        for service_class in get_args(ServiceClass):
            self._running[service_class].set(stats.num_running.get(service_class, 0))
            self._waiting[service_class].set(stats.num_waiting.get(service_class, 0))
        self._kv_usage.set(stats.num_held_blocks / max(1, stats.num_blocks))
        self._fragmentation.set(stats.num_empty_slots / max(1, stats.num_allocated_slots))
        for state in ("free", "cached", "held"):
            self._blocks[state].set(getattr(stats, f"num_{state}_blocks"))
        for name, counter in self._engine_counters.items():
            self._catch_up(name, counter, getattr(stats, name))

    def _catch_up(self, name: str, counter: Counter, total: int) -> None:
        """Prometheus' counters only add; the engine reports totals."""
        seen = self._seen.get(name, 0)
        self._seen[name] = max(seen, total)
        counter.inc(max(0, total - seen))

    def _create_gauges(self) -> None:
        self._running = self._gauges("requests_running", "Sequences with a seat in the engine.", get_args(ServiceClass))
        self._waiting = self._gauges("requests_waiting", "Requests that wait for a seat.", get_args(ServiceClass))
        self._blocks = self._gauges("kv_blocks", "Blocks of the KV pool by state.", ("free", "cached", "held"), "state")
        self._kv_usage = self._gauge("kv_cache_usage_ratio", "Share of KV blocks held by requests.")
        self._fragmentation = self._gauge(
            "kv_fragmentation_ratio", "Share of allocated KV slots that hold no token: internal fragmentation."
        )

    def _create_request_metrics(self) -> None:
        seconds = self._histogram
        self._ttft = seconds("time_to_first_token_seconds", "From arrival to the first token; once a request.")
        self._token_gap = seconds("inter_token_latency_seconds", "Between outputs of one answer.", _TOKEN_GAP_S)
        self._per_token = seconds(
            "time_per_output_token_seconds", "Mean time per output token after the first; once a request.", _TOKEN_GAP_S
        )
        self._queue = seconds("request_queue_time_seconds", "Waiting for a seat; once a request.")
        self._prefill = seconds("request_prefill_time_seconds", "From seat to first token; once a request.")
        self._decode = seconds("request_decode_time_seconds", "From first to last token; once a request.")
        self._e2e = seconds("request_duration_seconds", "From arrival to the last token of requests answered in full.")
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of computed prompts, cached ones included.")
        self._cached_tokens = self._counter("cached_prompt_tokens", "Of those, read from the prefix cache.")
        self._generation_tokens = self._counter(
            "generation_tokens", "Tokens generated, those of aborted ones included."
        )
        self._finished = self._counters(
            "requests_finished",
            "Accepted requests by how they ended, each once.",
            get_args(FinishReason),
            "finish_reason",
        )
        self._refused = self._counters(
            "requests_refused", "Requests not accepted, by reason.", get_args(RefusalReason), "reason"
        )

    def _create_step_metrics(self) -> None:
        self._step_time = self._histogram("step_time_seconds", "Duration of a step.", _TOKEN_GAP_S)
        self._step_tokens = self._histogram("step_tokens", "Tokens computed in a step.", _POWERS)
        self._step_seqs = self._histogram("step_sequences", "Sequences in a step.", _POWERS[:13])

    def _create_cache_counters(self) -> None:
        self._wasted = self._counter("wasted_tokens", "Tokens generated past a stop condition.")
        self._engine_counters = {
            "prefix_queries": self._counter(
                "prefix_cache_queried_tokens", "Prompt tokens looked up, each request once."
            ),
            "prefix_hits": self._counter("prefix_cache_hit_tokens", "Of those, found in the prefix cache."),
            "num_preemptions": self._counter("preemptions", "Requests that lost their KV to make room."),
            "num_recomputed_tokens": self._counter("recomputed_tokens", "Tokens computed again after a preemption."),
            "num_wasted_tokens": self._wasted,
        }

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"tandem_{name}", text, ("model",), registry=self._registry).labels(self._model)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"tandem_{name}", text, ("model",), registry=self._registry).labels(self._model)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...] = _LATENCY_S) -> Histogram:
        family = Histogram(f"tandem_{name}", text, ("model",), registry=self._registry, buckets=buckets)
        return family.labels(self._model)

    def _gauges(self, name: str, text: str, values: tuple[str, ...], label: str = "class") -> dict[str, Gauge]:
        family = Gauge(f"tandem_{name}", text, ("model", label), registry=self._registry)
        return {value: family.labels(self._model, value) for value in values}

    def _counters(self, name: str, text: str, values: tuple[str, ...], label: str) -> dict[str, Counter]:
        family = Counter(f"tandem_{name}", text, ("model", label), registry=self._registry)
        return {value: family.labels(self._model, value) for value in values}
