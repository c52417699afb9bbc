"""OpenVINO Model Server: OpenAI's API under `/v3`, health under `/v2`, and few figures."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tandem.config.deployment import EngineKind
from tandem.gateway.replicas import fields as steps
from tandem.gateway.replicas.openai import OpenAIAdapter, failure_of
from tandem.gateway.replicas.prometheus_text import Metrics
from tandem.gateway.replicas.replica import Signals

_MODELS: Final = "/v3/models"
_RUNNING: Final = "ovms_current_graphs"
"""Generations in work. Those that wait inside one aren't told apart."""


class OpenVINOAdapter(OpenAIAdapter):
    """It can't salt its prefix cache, so tenants that must not share one need pools of their own."""

    kind: EngineKind = "openvino"
    base_path = "/v3"
    chat_limit = "max_completion_tokens"
    dropped = steps.INTERNAL | steps.BOOKKEEPING
    sampling_defaults = {  # noqa: RUF012 -- a constant of the class
        "temperature": 1.0, "top_p": 1.0, "repetition_penalty": 1.0,
    }  # fmt: skip

    def ready_probe(self) -> tuple[str, str, bytes | None]:
        return "GET", "/v2/health/ready", None

    def deep_probe(self, model: str) -> tuple[str, str, bytes | None] | None:
        """The server is ready before its models are: its list must have ours."""
        return "GET", _MODELS, None

    def probe_failure(self, path: str, status: int, body: bytes, model: str) -> str | None:
        if (failure := failure_of(status, body)) is not None:
            return failure
        if path != _MODELS or model in (names := _names(body)):
            return None
        return f"the server doesn't have the model {model!r}; it has {', '.join(sorted(names)) or 'none'}"

    def metrics_path(self) -> str | None:
        return "/metrics"

    def parse_signals(self, body: bytes, now_s: float) -> Signals:
        return Signals(taken_s=now_s, running=Metrics(body, (_RUNNING,)).whole(_RUNNING))


def _names(body: bytes) -> set[str]:
    try:
        content: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return set()
    models = content.get("data") if isinstance(content, dict) else None
    if not isinstance(models, list):
        return set()
    return {str(model.get("id")) for model in models if isinstance(model, dict)}
