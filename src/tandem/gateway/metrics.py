"""The data path's metrics, by name. Every label value is from a bounded set: unknown models are "other".

Series are looked up in plain dicts, not through `labels()`, which locks and formats on every call.
"""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from tandem.core.types import ServiceClass

_LATENCY_S: Final = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
NO_POOL: Final = "-"
"""Of requests that reached no replica."""


class GatewayMetrics:
    """Not for several threads at once."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        labels = ("class", "model", "pool")
        self._requests = Counter(
            "tandem_gateway_requests", "Requests by how they ended, each once.", (*labels, "status"), registry=registry
        )
        self._ttft = Histogram(
            "tandem_gateway_time_to_first_token_seconds",
            "From arrival to the first content of a stream. Plain answers have none.",
            labels, registry=registry, buckets=_LATENCY_S,
        )  # fmt: skip
        self._e2e = Histogram(
            "tandem_gateway_request_duration_seconds",
            "From arrival to the last byte of requests answered in full.",
            labels, registry=registry, buckets=_LATENCY_S,
        )  # fmt: skip
        self._prompt_tokens = Counter(
            "tandem_gateway_prompt_tokens", "Cached ones included.", labels, registry=registry
        )
        self._output_tokens = Counter(
            "tandem_gateway_output_tokens", "Those of aborted answers included.", labels, registry=registry
        )
        self._in_flight = Gauge(
            "tandem_gateway_requests_in_flight", "Accepted and not ended: waiting or running.", ("class",),
            registry=registry,
        )  # fmt: skip
        self._attempts = Counter(
            "tandem_gateway_extra_attempts", "Retries and hedges sent, and those the budget forbade.", ("kind",),
            registry=registry,
        )  # fmt: skip
        self._request_series: dict[tuple[str, str, str, int], Counter] = {}
        self._series: dict[tuple[str, str, str], tuple[Histogram, Histogram, Counter, Counter]] = {}
        self._gauges: dict[str, Gauge] = {name: self._in_flight.labels(name) for name in ("interactive", "batch")}

    def arrived(self, service_class: ServiceClass) -> None:
        self._gauges[service_class].inc()

    def extra_attempt(self, kind: str) -> None:
        """`kind`: retry, hedge, or no_budget."""
        self._attempts.labels(kind).inc()

    def refused(self, status: int) -> None:
        """A request that never became one: malformed, no key, an unknown model. What it asked for is no label."""
        self._count(NO_POOL, NO_POOL, NO_POOL, status)

    def ended(
        self, service_class: ServiceClass, model: str, pool: str, status: int, *,
        ttft_s: float | None, e2e_s: float | None, prompt_tokens: int, output_tokens: int,
    ) -> None:  # fmt: skip
        """Once for each `arrived`. `e2e_s`: None unless it was answered in full."""
        self._gauges[service_class].dec()
        self._count(service_class, model, pool, status)
        key = service_class, model, pool
        ttft, e2e, prompts, outputs = self._series.get(key) or self._make_series(key)
        if ttft_s is not None:
            ttft.observe(ttft_s)
        if e2e_s is not None:
            e2e.observe(e2e_s)
        prompts.inc(prompt_tokens)
        outputs.inc(output_tokens)

    def _count(self, service_class: str, model: str, pool: str, status: int) -> None:
        key = service_class, model, pool, status
        series = self._request_series.get(key)
        if series is None:
            series = self._request_series[key] = self._requests.labels(service_class, model, pool, str(status))
        series.inc()

    def _make_series(self, key: tuple[str, str, str]) -> tuple[Histogram, Histogram, Counter, Counter]:
        series = (
            self._ttft.labels(*key),
            self._e2e.labels(*key),
            self._prompt_tokens.labels(*key),
            self._output_tokens.labels(*key),
        )
        self._series[key] = series
        return series
