"""The body sent to an engine, made from the client's: steps that adapters put together. No field is parsed but those
that are changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from tandem.gateway.context import RequestContext
from tandem.gateway.replicas.base import Fields

INTERNAL: Final = frozenset(
    {
        "priority", "cache_salt", "extra_key", "request_id", "rid", "id_slot", "kv_transfer_params", "vllm_xargs",
        "bootstrap_host", "bootstrap_port", "bootstrap_room", "data_parallel_rank", "routed_dp_rank",
        "disagg_prefill_dp_rank", "disaggregated_params", "session_id", "session_params", "lora_path",
        "custom_logit_processor", "logits_processors", "return_hidden_states", "chat_template", "trust_remote_code",
    }
)  # fmt: skip
"""Not a client's to say: they steer the engine, reach other clients' memory, or run code."""
BOOKKEEPING: Final = frozenset(
    {
        "store", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "service_tier", "user",
    }
)  # fmt: skip
"""OpenAI's, without effect on the answer; engines that refuse what they don't know refuse these."""
_COMPLETION_TOKENS: Final = 16
"""OpenAI's default in /v1/completions; engines differ."""
_NULL: Final = b"null"


def raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def is_given(fields: Fields, name: str) -> bool:
    """null means the same as left out."""
    return name in fields and bytes(fields[name]) != _NULL


def without(fields: Fields, *unwanted: frozenset[str]) -> Fields:
    return {name: value for name, value in fields.items() if not any(name in names for names in unwanted)}


def fill(fields: Fields, defaults: Mapping[str, Any]) -> None:
    """What the client left out, said: an engine's own default never decides."""
    for name, value in defaults.items():
        if not is_given(fields, name):
            fields[name] = raw(value)


def ask_for_usage(fields: Fields, request: RequestContext) -> None:
    """In a stream's last chunk, which the data path removes again where the client didn't ask."""
    if not request.is_stream:
        fields.pop("stream_options", None)
        return
    options: dict[str, Any] = {}
    if is_given(fields, "stream_options"):
        given = msgspec.json.decode(fields["stream_options"])
        options = given if isinstance(given, dict) else {}
    fields["stream_options"] = raw(options | {"include_usage": True})


def cap_output(fields: Fields, request: RequestContext, *, chat_name: str | None = "max_tokens") -> None:
    """One limit, under the one name that the engine knows. `chat_name` None: chat keeps the client's own spelling."""
    given = [name for name in ("max_completion_tokens", "max_tokens") if is_given(fields, name)]
    limit = request.max_output_tokens
    if limit is None and given:
        limit = msgspec.json.decode(fields[given[0]])
    fields.pop("max_tokens", None)
    fields.pop("max_completion_tokens", None)
    if request.endpoint == "/v1/completions":
        fields["max_tokens"] = raw(_COMPLETION_TOKENS if limit is None else limit)
    elif limit is not None:
        fields[chat_name or (given[0] if given else "max_completion_tokens")] = raw(limit)
