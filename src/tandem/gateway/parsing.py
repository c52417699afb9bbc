"""From a request's bytes to its context. Reads what the gateway must know; the prompt stays the bytes it was.

What is wrong with messages, sampling parameters and other fields is the engine's to say: its 400 passes through. Here
only that is refused which the gateway itself must understand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from tandem.core.errors import InvalidRequest
from tandem.core.types import ServiceClass
from tandem.gateway.context import Caller, Endpoint, Goal, RequestContext
from tandem.gateway.lengths import LengthEstimates
from tandem.gateway.prefixes import prefix_hashes
from tandem.protocol.generation import StreamOptions
from tandem.protocol.json_errors import invalid_json
from tandem.protocol.service_tier import class_of_tier

MAX_MODEL_CHARS: Final = 256
MAX_ANSWERS: Final = 128
"""OpenAI's limit on n."""
_MAX_SESSION_CHARS: Final = 256
_EMPTY: Final = msgspec.Raw(b"")
_PROMPT_FIELD: Final[dict[Endpoint, str]] = {
    "/v1/chat/completions": "messages",
    "/v1/completions": "prompt",
    "/v1/embeddings": "input",
}


class _Head(msgspec.Struct, kw_only=True):
    """The few fields that are understood here. Any may be null, which means the same as left out."""

    model: str
    messages: msgspec.Raw = _EMPTY
    prompt: msgspec.Raw = _EMPTY
    input: msgspec.Raw = _EMPTY
    tools: msgspec.Raw = _EMPTY
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    service_tier: str | None = None
    user: str | None = None
    prompt_cache_key: str | None = None


_head_decoder = msgspec.json.Decoder(_Head)
_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items_decoder = msgspec.json.Decoder(list[msgspec.Raw])


@dataclass(frozen=True, slots=True)
class Arrival:
    """What came in, before it is understood."""

    endpoint: Endpoint
    body: bytes
    request_id: str
    client_request_id: str | None = None
    session: str | None = None
    """From a header; beats the body's."""
    from_batch: bool = False


@dataclass(frozen=True, slots=True)
class ParserConfig:
    goals: dict[ServiceClass, Goal] = field(default_factory=lambda: {"interactive": Goal(), "batch": Goal()})
    max_output_tokens: dict[ServiceClass, int | None] = field(
        default_factory=lambda: {"interactive": None, "batch": None}
    )
    """The cap by class; the key's is the caller's, the pool's is applied when a replica is chosen."""


class RequestParser:
    """Pure but for the estimates, which answers correct."""

    def __init__(self, lengths: LengthEstimates, config: ParserConfig | None = None) -> None:
        self.lengths = lengths
        self.config = config or ParserConfig()

    def parse(self, arrival: Arrival, caller: Caller, now_s: float) -> RequestContext:
        """Raises `InvalidRequest` in the words of protocol/json_errors."""
        head, fields = _decode(arrival.body)
        prompt = _prompt(head, arrival.endpoint)
        num_prompts, counted = _count(prompt, arrival.endpoint)
        service_class = _service_class(caller, arrival, head)
        cap = self._cap(head, arrival, caller, service_class)
        num_answers = num_prompts * (head.n or 1)
        prompt_tokens = counted or self.lengths.prompt_tokens(head.model, len(prompt) + len(bytes(head.tools)))
        one_output = 0 if _is_embedding(arrival) else self.lengths.output_tokens(caller.key_id, head.model, cap)
        return RequestContext(
            request_id=arrival.request_id,
            client_request_id=arrival.client_request_id,
            endpoint=arrival.endpoint,
            caller=caller,
            service_class=service_class,
            goal=self.config.goals[service_class],
            model=head.model,
            body=arrival.body,
            is_stream=bool(head.stream) and not _is_embedding(arrival),
            wants_usage=bool(head.stream_options and head.stream_options.include_usage),
            num_answers=num_answers,
            max_output_tokens=cap,
            arrived_s=now_s,
            prompt_bytes=len(prompt) + len(bytes(head.tools)),
            prompt_tokens=prompt_tokens,
            output_tokens=one_output * num_answers,
            session=_session(arrival, head),
            prefix_hashes=_prefix(head, prompt, caller),
            fields=fields,
            tier=head.service_tier,
        )

    def _cap(self, head: _Head, arrival: Arrival, caller: Caller, service_class: ServiceClass) -> int | None:
        """The least of what was asked for and of what the key and the class allow."""
        if _is_embedding(arrival):
            return None
        asked = head.max_completion_tokens if arrival.endpoint == "/v1/chat/completions" else None
        asked = head.max_tokens if asked is None else asked
        caps = (asked, caller.max_output_tokens, self.config.max_output_tokens[service_class])
        return min((cap for cap in caps if cap is not None), default=None)


def _decode(body: bytes) -> tuple[_Head, dict[str, msgspec.Raw]]:
    try:
        head = _head_decoder.decode(body)
        fields = _fields_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise invalid_json(error, body) from error
    _check(head)
    return head, fields


def _check(head: _Head) -> None:
    if not 0 < len(head.model) <= MAX_MODEL_CHARS:
        raise InvalidRequest(
            f"model has {len(head.model)} characters; it must have 1 to {MAX_MODEL_CHARS}.", param="model"
        )
    if head.n is not None and not 1 <= head.n <= MAX_ANSWERS:
        raise InvalidRequest(f"n is {head.n}; it must be 1 to {MAX_ANSWERS}.", param="n")
    for name in ("max_tokens", "max_completion_tokens"):
        value = getattr(head, name)
        if value is not None and value < 0:
            raise InvalidRequest(f"{name} is {value}; it must not be negative.", param=name)
    if head.stream_options is not None and not head.stream:
        raise InvalidRequest("stream_options is only allowed with stream set to true.", param="stream_options")


def _prompt(head: _Head, endpoint: Endpoint) -> memoryview:
    name = _PROMPT_FIELD[endpoint]
    prompt = memoryview(getattr(head, name))
    start = bytes(prompt[:5])
    if start in (b"", b"null"):
        raise InvalidRequest(f"{name} is required.", param=name)
    if endpoint == "/v1/chat/completions" and start[:1] != b"[":
        raise InvalidRequest("messages must be a list.", param="messages")
    return prompt


def _count(prompt: memoryview, endpoint: Endpoint) -> tuple[int, int | None]:
    """How many prompts, and their tokens where they are given as ids. Only lists are looked into."""
    if endpoint == "/v1/chat/completions" or bytes(prompt[:1]) != b"[":
        return 1, None
    start = bytes(prompt[1:64]).lstrip()[:1]
    if start.isdigit():
        return 1, bytes(prompt).count(b",") + 1
    if start == b"[":
        items = _items_decoder.decode(prompt)
        return max(1, len(items)), sum(bytes(item).count(b",") + 1 for item in items)
    return max(1, len(_items_decoder.decode(prompt))), None


def _service_class(caller: Caller, arrival: Arrival, head: _Head) -> ServiceClass:
    """The key's rule, then the batch API, then the tier. An unknown tier is refused whoever decides."""
    by_tier = class_of_tier(head.service_tier)
    if caller.forced_class is not None:
        return caller.forced_class
    return "batch" if arrival.from_batch else by_tier


def _session(arrival: Arrival, head: _Head) -> str | None:
    session = arrival.session or head.prompt_cache_key or head.user
    return session[:_MAX_SESSION_CHARS] if session else None


def _prefix(head: _Head, prompt: memoryview, caller: Caller) -> tuple[bytes, ...]:
    """Tools come before the messages in what templates write, so they come first here too."""
    salt = f"{caller.cache_salt or ''}\0{head.model}\0"
    tools = bytes(head.tools)
    return prefix_hashes(tools + bytes(prompt) if tools else prompt, salt)


def _is_embedding(arrival: Arrival) -> bool:
    return arrival.endpoint == "/v1/embeddings"
