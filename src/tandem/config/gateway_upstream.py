"""Settings of the gateway's way to its replicas: time-outs on silence, retries, hedging, pings, sizes."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class UpstreamConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a replica may be silent, and what happens then. No limit is on an answer's length in time."""

    connect_timeout_s: Annotated[float, Meta(gt=0, description="To reach a replica, in seconds.")] = 5.0
    first_token_timeout_s: Annotated[
        float,
        Meta(gt=0, description="Silence before a stream's first token, in seconds; then another replica is tried."),
    ] = 300.0
    plain_timeout_s: Annotated[
        float, Meta(gt=0, description="Silence before an answer that isn't streamed, in seconds.")
    ] = 1800.0
    idle_timeout_s: Annotated[
        float, Meta(gt=0, description="Silence within an answer that has begun, in seconds. Pings don't count.")
    ] = 120.0
    client_stall_timeout_s: Annotated[
        float, Meta(gt=0, description="How long a client may read nothing of its stream, in seconds.")
    ] = 300.0
    ping_after_s: Annotated[
        float, Meta(gt=0, description="Wait for the first token after which a stream's headers go out, in seconds.")
    ] = 15.0
    ping_every_s: Annotated[float, Meta(gt=0, description="Between comment pings from then on, in seconds.")] = 15.0
    max_attempts: Annotated[
        int, Meta(ge=1, le=10, description="Replicas tried for one request, the first included.")
    ] = 3
    retry_ratio: Annotated[
        float, Meta(ge=0, le=10, description="Retries and hedges allowed for each request that arrives.")
    ] = 0.2
    retry_burst: Annotated[
        int, Meta(ge=0, description="Retries and hedges that may be saved up; the budget is full at start.")
    ] = 100
    hedge_after_s: (
        Annotated[
            float, Meta(gt=0, description="Wait for the first token, then ask a second replica too. None: never.")
        ]
        | None
    ) = None
    max_header_kib: Annotated[int, Meta(ge=1, description="Largest header of a replica's answer, in KiB.")] = 64
    max_answer_mib: Annotated[int, Meta(ge=1, description="Largest answer that isn't streamed, in MiB.")] = 64
    max_event_kib: Annotated[int, Meta(ge=1, description="Largest event of a stream, in KiB.")] = 4096
    max_idle_connections: Annotated[int, Meta(ge=0, description="Kept open to a replica between requests.")] = 256
    keepalive_s: Annotated[float, Meta(ge=0, description="How long an unused connection is kept, in seconds.")] = 30.0
    client_buffer_kib: Annotated[
        int, Meta(ge=1, description="Unsent bytes of one slow reader before its replica is made to wait, in KiB.")
    ] = 256
