"""How the gateway watches its replicas, when it stops asking one, and how engine processes are kept running."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class HealthConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Probes say whether a replica is up; scrapes say how busy it is."""

    probe_period_s: Annotated[float, Meta(gt=0, description="Between probes of one replica, in seconds.")] = 2.0
    probe_timeout_s: Annotated[float, Meta(gt=0, description="Silence that fails a probe, in seconds.")] = 5.0
    failures_to_down: Annotated[int, Meta(ge=1, description="Failed probes in a row that take a replica out.")] = 2
    deep_probe_period_s: Annotated[
        float,
        Meta(gt=0, description="Between one-token requests to engines whose health can lie, in seconds, while idle."),
    ] = 30.0
    deep_probe_timeout_s: Annotated[
        float, Meta(gt=0, description="Silence that fails a one-token request, in seconds.")
    ] = 30.0
    scrape_period_s: Annotated[float, Meta(gt=0, description="Between readings of an engine's metrics.")] = 1.0
    scrape_timeout_s: Annotated[float, Meta(gt=0, description="Silence that fails a reading, in seconds.")] = 3.0
    stale_after_s: Annotated[
        float, Meta(gt=0, description="Age at which figures of load are no longer believed, in seconds.")
    ] = 10.0
    jitter: Annotated[
        float, Meta(ge=0, lt=1, description="Share by which each period varies, so that replicas aren't asked at once.")
    ] = 0.2


class CircuitConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a replica that is up gets no more requests for a while."""

    failures_to_open: Annotated[int, Meta(ge=1, description="Failed requests in a row that open the circuit.")] = 5
    open_s: Annotated[float, Meta(gt=0, description="First time without requests; doubled each time, in seconds.")] = (
        5.0
    )
    max_open_s: Annotated[float, Meta(gt=0, description="Longest time without requests, in seconds.")] = 60.0
    outlier_period_s: Annotated[float, Meta(gt=0, description="Between comparisons of a pool's replicas.")] = 10.0
    outlier_min_requests: Annotated[
        int, Meta(ge=1, description="Requests within the period that a replica needs to be compared.")
    ] = 20
    outlier_error_rate: Annotated[
        float, Meta(gt=0, le=1, description="Share of failures, above that of the pool's others, that ejects.")
    ] = 0.2
    outlier_latency_factor: Annotated[
        float, Meta(gt=1, description="Multiple of the pool's median time to first token that ejects.")
    ] = 5.0
    outlier_max_share: Annotated[
        float, Meta(ge=0, lt=1, description="Largest share of a pool's replicas that may be ejected at once.")
    ] = 0.34


class ProcessConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Engine processes that the gateway starts itself."""

    restart_delay_s: Annotated[
        float, Meta(gt=0, description="Wait before a process that ended is started again; doubled each time.")
    ] = 1.0
    max_restart_delay_s: Annotated[float, Meta(gt=0, description="Longest such wait, in seconds.")] = 60.0
    stable_after_s: Annotated[
        float,
        Meta(gt=0, description="Running this long, in seconds, a process has started well: the wait is short again."),
    ] = 60.0
    crashes_to_report: Annotated[
        int, Meta(ge=1, description="Ends in a row, each before it was stable, that are called a crash loop.")
    ] = 3
    stop_timeout_s: Annotated[
        float,
        Meta(ge=0, description="Time to end after SIGTERM, in seconds; then the process is killed."),
    ] = 30.0
    drain_timeout_s: Annotated[
        float, Meta(ge=0, description="How long its requests may finish before it gets SIGTERM, in seconds.")
    ] = 120.0
    memory_share: Annotated[
        float, Meta(gt=0, le=1, description="Share of a device's memory for all engines on it together.")
    ] = 0.8
