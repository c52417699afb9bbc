"""What the engine is and how it fares: health, readiness, models, version, metrics, and its state for a gateway."""

from __future__ import annotations

from typing import cast

import msgspec
from aiohttp import web

from tandem import __version__
from tandem.core.errors import NotFound
from tandem.core.types import ServiceClass
from tandem.engine.front.admission import retry_after_s
from tandem.engine.front.front import FRONT, Front
from tandem.engine.front.responses import json_response
from tandem.observability.metrics import CONTENT_TYPE
from tandem.protocol import headers as names
from tandem.protocol.models import Model, ModelList, Version
from tandem.protocol.state import BlockCounts, EngineCounters, EngineState, SlotCounts


class Status(msgspec.Struct, kw_only=True):
    """The body of `/health` and `/ready`."""

    status: str
    reason: str | None = None


async def health(request: web.Request) -> web.Response:
    """200 while the engine's loop turns, while it loads, and while what runs may finish: restarting would not help."""
    front = request.app[FRONT]
    reason = front.closed_reason()
    if reason == "engine_down" or (reason == "draining" and front.is_silent):
        return json_response(Status(status=reason, reason=front.describe(reason)), status=503)
    return json_response(Status(status="loading" if reason == "loading" else "ok"))


async def ready(request: web.Request) -> web.Response:
    """200 while requests are taken."""
    front = request.app[FRONT]
    reason = front.closed_reason()
    if reason is None:
        return json_response(Status(status="ok"))
    delay = {names.RETRY_AFTER: str(int(retry_after_s(reason)))}
    return json_response(Status(status=reason, reason=front.describe(reason)), status=503, headers=delay)


async def list_models(request: web.Request) -> web.Response:
    return json_response(ModelList(data=[_model(request.app[FRONT])]))


async def get_model(request: web.Request) -> web.Response:
    front, name = request.app[FRONT], request.match_info["model"]
    if name != front.model_name:
        raise NotFound(f"The model {name!r:.200} does not exist here.", param="model", code="model_not_found")
    return json_response(_model(front))


def _model(front: Front) -> Model:
    info = front.client.info
    return Model(id=front.model_name, created=front.created, max_model_len=info.max_model_len if info else None)


async def version(request: web.Request) -> web.Response:
    return json_response(Version(version=__version__))


async def metrics(request: web.Request) -> web.Response:
    front = request.app[FRONT]
    front.metrics.update(front.client.stats)
    return web.Response(body=front.metrics.render(), headers={"Content-Type": CONTENT_TYPE})


async def state(request: web.Request) -> web.Response:
    return json_response(_state(request.app[FRONT]))


def _state(front: Front) -> EngineState:
    info, stats = front.client.info, front.client.stats
    return EngineState(
        version=__version__,
        model=front.model_name,
        runner=info.runner if info else None,
        is_ready=front.closed_reason() is None,
        is_draining=front.is_draining,
        failure=front.client.failure,
        heartbeat_age_s=front.client.heartbeat_age_s() if info else None,
        block_size=info.block_size if info else None,
        max_model_len=info.max_model_len if info else None,
        max_num_seqs=info.max_num_seqs if info else None,
        running=cast("dict[ServiceClass, int]", stats.num_running),
        waiting=cast("dict[ServiceClass, int]", stats.num_waiting),
        queued_prompt_tokens=stats.num_queued_prompt_tokens,
        blocks=BlockCounts(free=stats.num_free_blocks, cached=stats.num_cached_blocks, held=stats.num_held_blocks),
        slots=SlotCounts(allocated=stats.num_allocated_slots, empty=stats.num_empty_slots),
        counters=EngineCounters(
            steps=stats.num_steps,
            busy_s=stats.busy_s,
            preemptions=stats.num_preemptions,
            recomputed_tokens=stats.num_recomputed_tokens,
            wasted_tokens=stats.num_wasted_tokens,
            prefix_queries=stats.prefix_queries,
            prefix_hits=stats.prefix_hits,
        ),
        recent_steps=front.steps.recent(),
        kv_events_sequence=stats.kv_events_sequence,
    )
