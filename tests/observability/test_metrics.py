"""Names, labels and counts of the engine's metrics."""

from __future__ import annotations

import re

from prometheus_client.parser import text_string_to_metric_families

from tandem.engine.messages import EngineStats, RequestUsage
from tandem.observability.metrics import EngineMetrics


def series(metrics: EngineMetrics) -> dict[tuple[str, str], float]:
    """(name, label values but the model's) → value."""
    return {
        (sample.name, ",".join(value for key, value in sorted(sample.labels.items()) if key != "model")): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


def used_metrics() -> EngineMetrics:
    metrics = EngineMetrics('mo"del\n')
    metrics.prompt_computed(10, 4)
    metrics.first_token(0.2)
    metrics.token_gap(0.01)
    metrics.finished("stop", 3)
    metrics.completed(0.5, 0.01, RequestUsage(10, 4, 3, 0.1, 0.2, 0.3, 0.4, 0.5, 0, 0))
    metrics.refused("queue_full")
    metrics.step(0.02, 100, 4)
    return metrics


def test_every_series_is_tandems_and_has_the_model() -> None:
    families = list(text_string_to_metric_families(used_metrics().render().decode()))
    assert families
    for family in families:
        assert re.fullmatch(r"tandem_[a-z_]+", family.name)
        assert family.documentation.endswith(".")
        assert all(sample.labels["model"] == 'mo"del\n' for sample in family.samples)
        if family.type == "counter":
            assert all(sample.name.endswith("_total") for sample in family.samples)


def test_the_number_of_series_is_fixed_at_start() -> None:
    assert series(EngineMetrics("m")).keys() == series(used_metrics()).keys()


def test_request_counts() -> None:
    got = series(used_metrics())
    assert got["tandem_prompt_tokens_total", ""] == 10
    assert got["tandem_cached_prompt_tokens_total", ""] == 4
    assert got["tandem_generation_tokens_total", ""] == 3
    assert got["tandem_requests_finished_total", "stop"] == 1
    assert got["tandem_requests_finished_total", "abort"] == 0
    assert got["tandem_requests_refused_total", "queue_full"] == 1
    assert got["tandem_time_to_first_token_seconds_count", ""] == 1
    assert got["tandem_request_queue_time_seconds_sum", ""] == 0.1
    assert got["tandem_request_duration_seconds_sum", ""] == 0.5
    assert got["tandem_step_tokens_sum", ""] == 100


def test_engine_reports_become_gauges_and_growing_counters() -> None:
    metrics = EngineMetrics("m")
    stats = EngineStats(
        time_s=0, num_running={"interactive": 2}, num_waiting={"batch": 5}, num_blocks=10, num_held_blocks=4,
        num_free_blocks=5, num_cached_blocks=1, num_allocated_slots=64, num_empty_slots=16, prefix_queries=30,
        prefix_hits=8, num_preemptions=1,
    )  # fmt: skip
    metrics.update(stats)
    metrics.update(stats)
    stats.prefix_hits, stats.num_waiting = 9, {}
    metrics.update(stats)
    got = series(metrics)
    assert got["tandem_requests_running", "interactive"] == 2
    assert got["tandem_requests_waiting", "batch"] == 0
    assert got["tandem_kv_cache_usage_ratio", ""] == 0.4
    assert got["tandem_kv_fragmentation_ratio", ""] == 0.25
    assert got["tandem_prefix_cache_queried_tokens_total", ""] == 30
    assert got["tandem_prefix_cache_hit_tokens_total", ""] == 9
    assert got["tandem_preemptions_total", ""] == 1


def test_two_registries_do_not_know_each_other() -> None:
    used_metrics()
    assert series(EngineMetrics("m"))["tandem_prompt_tokens_total", ""] == 0
