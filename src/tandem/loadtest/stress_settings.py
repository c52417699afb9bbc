"""What a stress test is told: how long each phase is, and what passes. Each field is a flag of `tandem stress`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class StressSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far and how long. Rates are shares of the knee."""

    step: Annotated[float, Meta(gt=0, description="Seconds of each step while the knee is sought.")] = 15.0
    hold: Annotated[float, Meta(gt=0, description="Seconds at the knee.")] = 30.0
    overload: Annotated[float, Meta(gt=0, description="Seconds beyond it.")] = 30.0
    recover: Annotated[float, Meta(gt=0, description="Seconds at the lower load afterwards.")] = 30.0
    beyond: Annotated[float, Meta(gt=1, description="The load beyond the knee, in knees.")] = 1.5
    back: Annotated[float, Meta(gt=0, lt=1, description="The load afterwards, in knees.")] = 0.5
    soak: Annotated[float, Meta(ge=0, description="Seconds of a soak at the end; 0: none.")] = 0.0
    soak_at: Annotated[float, Meta(gt=0, description="The load of the soak, in knees.")] = 0.8
    min_goodput_kept: Annotated[
        float, Meta(ge=0, le=1, description="Share of the knee's goodput that must remain beyond it.")
    ] = 0.7
    max_recovery: Annotated[float, Meta(ge=0, description="Longest recovery, in seconds.")] = 10.0
    max_memory_growth: Annotated[float, Meta(ge=0, description="Largest rise of memory in the soak, as a share.")] = (
        0.05
    )
