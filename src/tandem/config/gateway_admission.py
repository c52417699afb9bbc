"""How many requests may wait in the gateway, and for how long."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class QueueLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of one service class in one waiting room. Whatever is reached first refuses the next request."""

    max_requests: Annotated[int, Meta(ge=0, description="Requests that may wait.")] = 1024
    max_tokens: Annotated[int, Meta(ge=0, description="Their prompt and expected output tokens together.")] = 4_000_000
    max_mib: Annotated[float, Meta(ge=0, description="Their bodies together, in MiB.")] = 256.0
    max_wait_s: Annotated[float, Meta(gt=0, description="Longest wait in seconds; then the request is refused.")] = 60.0


class WaitingRoom(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of a room, by service class."""

    interactive: QueueLimits = QueueLimits()
    batch: QueueLimits = QueueLimits(max_requests=4096, max_tokens=32_000_000, max_wait_s=3600.0)


class AdmissionConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The two waiting rooms."""

    none_up: WaitingRoom = WaitingRoom(
        interactive=QueueLimits(max_wait_s=300.0), batch=QueueLimits(max_requests=4096, max_wait_s=3600.0)
    )
    """While no replica of the model is up: it may be starting. Full or expired: 503."""
    all_full: WaitingRoom = WaitingRoom()
    """While all replicas are at their limits. Full or expired: 429."""
    min_retry_after_s: Annotated[float, Meta(gt=0, description="Least Retry-After, in seconds.")] = 1.0
    max_retry_after_s: Annotated[float, Meta(gt=0, description="Largest Retry-After, in seconds.")] = 60.0
