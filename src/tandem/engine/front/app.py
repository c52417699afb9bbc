"""The front as an aiohttp application: its routes, and what is wrapped around them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from aiohttp import web

from tandem.config.engine import EngineConfig
from tandem.config.server import ServerConfig
from tandem.core.clock import Clock, SystemClock
from tandem.engine.client import EngineClient
from tandem.engine.front import status, tokens
from tandem.engine.front.chat import chat_completions
from tandem.engine.front.completions import completions
from tandem.engine.front.front import FRONT, Front
from tandem.engine.front.kv_events import KV_EVENTS, KVEventBuffer, kv_events
from tandem.engine.front.middleware import add_request_id, identify, require_key, shape_errors
from tandem.engine.front.text_service import TextService
from tandem.observability.metrics import EngineMetrics

_BYTES_IN_MIB: Final = 1 << 20


def create_app(
    client: EngineClient,
    text: TextService,
    config: ServerConfig,
    engine: EngineConfig,
    *,
    metrics: EngineMetrics | None = None,
    clock: Clock | None = None,
) -> web.Application:
    """The application, ready to be served by `serving.serve`. Raises `ConfigError`. Owns neither engine nor text."""
    front = Front(client, text, config, engine, metrics or EngineMetrics(engine.public_name), clock or SystemClock())
    keys = [] if config.api_key is None else [require_key(config.api_key)]
    app = web.Application(
        middlewares=[identify, shape_errors, *keys], client_max_size=int(config.max_body_mib * _BYTES_IN_MIB)
    )
    app[FRONT] = front
    app[KV_EVENTS] = KVEventBuffer(client, front.clock)
    app.on_response_prepare.append(add_request_id)
    app.cleanup_ctx.append(_close_front)
    client.watch_steps(front.steps.record)
    _add_routes(app)
    return app


def _add_routes(app: web.Application) -> None:
    app.add_routes(
        [
            web.post("/v1/chat/completions", chat_completions),
            web.post("/v1/completions", completions),
            web.get("/v1/models", status.list_models),
            web.get("/v1/models/{model:.+}", status.get_model),
            web.post("/tokenize", tokens.tokenize),
            web.post("/detokenize", tokens.detokenize),
            web.get("/health", status.health),
            web.get("/ready", status.ready),
            web.get("/metrics", status.metrics),
            web.get("/version", status.version),
            web.get("/tandem/state", status.state),
            web.get("/tandem/kv-events", kv_events),
        ]
    )


async def _close_front(app: web.Application) -> AsyncIterator[None]:
    yield
    app[FRONT].close()
