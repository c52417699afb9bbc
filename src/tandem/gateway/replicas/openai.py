"""Any API that speaks OpenAI's language, and the base of the other adapters: each says only where it differs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import msgspec

from tandem.config.deployment import EngineKind
from tandem.gateway.context import RequestContext
from tandem.gateway.replicas import fields as steps
from tandem.gateway.replicas.base import AdapterOptions, Call, Fields, UpstreamError
from tandem.gateway.replicas.error_shapes import judge, read_told
from tandem.gateway.replicas.replica import Signals

EMBEDDINGS: Final = "/v1/embeddings"
_NO_LISTING: Final = (404, 405, 501)
_REFUSALS: Final = (400, 405, 422, 429, 501)


class OpenAIAdapter:
    """Knows nothing of the engine: its models list is its health, and it has no metrics."""

    kind: EngineKind = "openai"
    base_path: ClassVar[str] = "/v1"
    sampling_defaults: ClassVar[Mapping[str, Any]] = {}
    """Sent where the client says nothing. Here none: the API's defaults are the meaning, and some models refuse any."""
    chat_limit: ClassVar[str | None] = None
    """Chat's field for the most tokens; None: as the client spelt it."""
    dropped: ClassVar[frozenset[str]] = steps.INTERNAL

    def __init__(self, options: AdapterOptions | None = None) -> None:
        self.options = options or AdapterOptions()

    # Requests.

    def path(self, endpoint: str) -> str:
        return self.base_path + endpoint.removeprefix("/v1")

    def request_fields(self, fields: Fields, request: RequestContext, model: str) -> Fields:
        sent = steps.without(fields, self.dropped)
        sent["model"] = steps.raw(model)
        if request.endpoint != EMBEDDINGS:
            steps.ask_for_usage(sent, request)
            steps.cap_output(sent, request, chat_name=self.chat_limit)
            steps.fill(sent, self.sampling_defaults)
            self.level(sent, request)
        return sent

    def level(self, fields: Fields, request: RequestContext) -> None:
        """What else this engine needs in a generation's body: priority, salt, its own names."""

    def request_headers(self, request: RequestContext) -> Mapping[str, str]:
        return {}

    # Health and figures.

    def ready_probe(self) -> tuple[str, str, bytes | None]:
        return "GET", f"{self.base_path}/models", None

    def deep_probe(self, model: str) -> tuple[str, str, bytes | None] | None:
        return None

    def probe_failure(self, path: str, status: int, body: bytes, model: str) -> str | None:
        """An API without a list of models is taken at its word that it is there."""
        return None if status in _NO_LISTING else failure_of(status, body)

    def metrics_path(self) -> str | None:
        return None

    def fallback_metrics_path(self) -> str | None:
        return None

    def parse_signals(self, body: bytes, now_s: float) -> Signals:
        raise ValueError(f"engines of kind {self.kind} have no figures to read.")

    # Errors.

    def error(self, status: int, body: bytes) -> UpstreamError:
        return judge(status, read_told(body))

    def event_error(self, data: bytes) -> UpstreamError | None:
        # Looked at for every event of every stream: the cheap test first.
        if b'"error' not in data[:512]:
            return None
        if not _is_error_event(data):
            return None
        return self.error(200, data)

    # What only some engines can do.

    def cancel_call(self, request: RequestContext) -> Call | None:
        return None

    def sleep_call(self) -> Call | None:
        return None

    def wake_call(self) -> Call | None:
        return None

    def asleep_call(self) -> Call | None:
        return None


class _Event(msgspec.Struct):
    """The top level of an event, or of an answer. Empty: the field isn't there."""

    error: msgspec.Raw = msgspec.Raw()
    object: str | None = None
    choices: msgspec.Raw = msgspec.Raw()


_NOTHING: Final = (b"", b"null", b"{}", b"[]", b'""')
_event_decoder = msgspec.json.Decoder(_Event)


def _is_error_event(data: bytes) -> bool:
    """A model may write `"error` in its text: only the top level counts. Half an event is for others to complain of."""
    try:
        event = _event_decoder.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return False
    return bytes(event.error) not in _NOTHING or event.object == "error"


def failure_of(status: int, body: bytes) -> str | None:
    """For probes that mean what their status says."""
    if 200 <= status < 300:
        return None
    told = read_told(body) if body else None
    said = f": {told.message[:200]}" if told is not None and told.message else ""
    return f"status {status}{said}"


def one_token_request(model: str) -> bytes:
    """The smallest request that only a living engine loop can answer."""
    return msgspec.json.encode({"model": model, "prompt": "1", "max_tokens": 1, "temperature": 0, "stream": False})


def one_token_failure(status: int, body: bytes) -> str | None:
    """200 isn't enough: there must be an answer in it. A refusal is no proof of life and none of death: the engine may
    be full, or serve embeddings only; a model that isn't there is a failure."""
    if status in _REFUSALS or (status == 404 and b"model" not in body.lower()):
        return None
    if (failure := failure_of(status, body)) is not None:
        return failure
    try:
        answer = msgspec.json.decode(body, type=_Event)
    except (msgspec.DecodeError, RecursionError):
        return "status 200, and no JSON in it"
    if bytes(answer.error) not in _NOTHING or answer.object == "error":
        told = read_told(body)
        return f"status 200 with an error inside: {told.message[:200] if told else ''}"
    return None if bytes(answer.choices) not in _NOTHING else "status 200 without an answer in it"
