"""Tandem's own engine. It tells its figures in one document, and takes what it is to do from headers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from tandem.config.deployment import EngineKind
from tandem.core.types import ServiceClass
from tandem.gateway.context import RequestContext
from tandem.gateway.replicas import fields as steps
from tandem.gateway.replicas.openai import OpenAIAdapter, failure_of
from tandem.gateway.replicas.replica import Signals, Totals
from tandem.protocol import headers as names
from tandem.protocol.state import EngineState

PRIORITIES: Final[Mapping[ServiceClass, int]] = {"interactive": 0, "batch": 1}
"""class → priority, lower is sooner."""
_decoder = msgspec.json.Decoder(EngineState)


class TandemAdapter(OpenAIAdapter):
    kind: EngineKind = "tandem"
    chat_limit = "max_completion_tokens"
    dropped = steps.INTERNAL | {"metadata", "store", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"}

    def request_headers(self, request: RequestContext) -> Mapping[str, str]:
        sent = {
            names.SERVICE_CLASS: request.service_class,
            names.PRIORITY: str(PRIORITIES[request.service_class]),
        }
        if request.caller.cache_salt is not None:
            sent[names.CACHE_SALT] = request.caller.cache_salt
        return sent

    def ready_probe(self) -> tuple[str, str, bytes | None]:
        """Its heartbeat is in it: an engine loop that stands still isn't ready."""
        return "GET", "/ready", None

    def probe_failure(self, path: str, status: int, body: bytes, model: str) -> str | None:
        if status == 503:
            try:
                said = msgspec.json.decode(body, type=_Status)
                return said.reason or said.status
            except msgspec.DecodeError:
                pass
        return failure_of(status, body)

    def metrics_path(self) -> str | None:
        return "/tandem/state"

    def parse_signals(self, body: bytes, now_s: float) -> Signals:
        try:
            state = _decoder.decode(body)
        except msgspec.DecodeError as error:
            raise ValueError(f"the engine's state can't be read: {error}") from None
        return _signals(state, now_s)


class _Status(msgspec.Struct):
    status: str
    reason: str | None = None


def _signals(state: EngineState, now_s: float) -> Signals:
    blocks, counters = state.blocks, state.counters
    total = blocks.free + blocks.cached + blocks.held
    is_told = total > 0  # its first report of figures may come after it is ready: until then they are no figures
    return Signals(
        taken_s=now_s,
        running=_whole(sum(state.running.values())),
        waiting=_whole(sum(state.waiting.values())),
        running_by_class=dict(state.running),
        kv_usage=blocks.held / total if is_told else None,
        queued_prompt_tokens=_whole(state.queued_prompt_tokens),
        block_size=state.block_size,
        blocks_free=blocks.free + blocks.cached if is_told else None,
        blocks_total=total if is_told else None,
        slots_allocated=_whole(state.slots.allocated) if is_told else None,
        slots_empty=_whole(state.slots.empty) if is_told else None,
        max_num_seqs=state.max_num_seqs,
        max_model_len=state.max_model_len,
        heartbeat_age_s=state.heartbeat_age_s,
        steps=tuple((step.duration_s, step.num_tokens, step.num_seqs) for step in state.recent_steps),
        totals=Totals(
            preemptions=counters.preemptions, prefix_queries=counters.prefix_queries, prefix_hits=counters.prefix_hits
        ),
    )


def _whole(count: int) -> int | None:
    return count if count >= 0 else None
