"""What each engine is sent, where, and what its errors mean."""

from __future__ import annotations

import msgspec
import pytest

from tandem.config.deployment import EngineKind
from tandem.gateway.replicas.adapters import ADAPTERS, make_adapter
from tandem.gateway.replicas.base import AdapterOptions
from tandem.protocol import headers as names
from tests.gateway.replicas import documents
from tests.gateway.replicas.helpers import decode, encode, make_request

KINDS: list[EngineKind] = list(ADAPTERS)
PRIORITISED = AdapterOptions(has_priorities=True)


@pytest.mark.parametrize("kind", KINDS)
def test_paths(kind: EngineKind) -> None:
    base = "/v3" if kind == "openvino" else "/v1"
    assert make_adapter(kind).path("/v1/chat/completions") == f"{base}/chat/completions"
    assert make_adapter(kind).path("/v1/embeddings") == f"{base}/embeddings"


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_is_asked_for_its_usage_and_the_clients_own_options_stay(kind: EngineKind) -> None:
    given = encode(
        {"model": "chat", "messages": [], "stream": True, "stream_options": {"x": 1, "include_usage": False}}
    )
    sent = decode(make_adapter(kind).request_fields(given, make_request(is_stream=True), "m"))
    assert sent["stream_options"] == {"x": 1, "include_usage": True}
    assert sent["model"] == "m"
    assert decode(given)["model"] == "chat", "the client's fields are for other attempts, too"
    plain = encode({"model": "chat", "messages": [], "stream_options": None})
    assert "stream_options" not in make_adapter(kind).request_fields(plain, make_request(), "m")


@pytest.mark.parametrize("kind", KINDS)
def test_what_steers_an_engine_is_not_a_clients_to_say(kind: EngineKind) -> None:
    internal = {"priority": -99, "cache_salt": "other-tenant", "id_slot": 3, "custom_logit_processor": "code",
                "kv_transfer_params": {}, "rid": "another's"}  # fmt: skip
    fields = encode({"model": "chat", "messages": [], **internal})
    sent = decode(make_adapter(kind).request_fields(fields, make_request(num_answers=2), "m"))
    assert not set(sent) & set(internal)


@pytest.mark.parametrize("kind", KINDS)
def test_the_tenants_salt_replaces_a_clients(kind: EngineKind) -> None:
    adapter, request = make_adapter(kind), make_request(cache_salt="salt-1")
    sent = decode(adapter.request_fields(encode({"model": "chat", "cache_salt": "mine"}), request, "m"))
    if kind in ("vllm", "sglang", "tensorrt-llm"):
        assert sent["cache_salt"] == "salt-1"
    elif kind == "tandem":
        assert adapter.request_headers(request)[names.CACHE_SALT] == "salt-1"
    elif kind == "llama.cpp":
        assert sent["cache_prompt"] is False
    else:
        assert "cache_salt" not in sent


def test_priority_has_each_engines_direction() -> None:
    batch, interactive = make_request(service_class="batch"), make_request()
    fields = encode({"model": "chat"})

    def priority(kind: EngineKind, options: AdapterOptions, urgent: bool) -> object:
        request = interactive if urgent else batch
        return decode(make_adapter(kind, options).request_fields(fields, request, "m")).get("priority", 0)

    assert priority("vllm", PRIORITISED, True) < priority("vllm", PRIORITISED, False)  # type: ignore[operator]
    assert priority("sglang", PRIORITISED, True) > priority("sglang", PRIORITISED, False)  # type: ignore[operator]
    for kind in ("vllm", "sglang"):  # refused unless priority scheduling is on
        sent = make_adapter(kind).request_fields(fields, batch, "m")
        assert "priority" not in sent
    tandem = make_adapter("tandem")
    assert tandem.request_headers(interactive)[names.PRIORITY] == "0"
    assert tandem.request_headers(batch) == {names.SERVICE_CLASS: "batch", names.PRIORITY: "1"}


def test_what_a_client_left_out_means_the_same_everywhere() -> None:
    fields = encode({"model": "chat", "messages": [], "temperature": None})
    llama = decode(make_adapter("llama.cpp").request_fields(fields, make_request(), "m"))
    assert {name: llama[name] for name in ("temperature", "top_k", "top_p", "min_p")} == {
        "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0,
    }  # fmt: skip
    vllm = decode(make_adapter("vllm").request_fields(fields, make_request(), "m"))
    assert (vllm["temperature"], vllm["top_p"], vllm["top_k"], vllm["repetition_penalty"]) == (1.0, 1.0, -1, 1.0)
    openai = decode(make_adapter("openai").request_fields(fields, make_request(), "m"))
    assert openai["temperature"] is None
    assert "top_p" not in openai


def test_what_a_client_said_stays() -> None:
    fields = encode({"model": "chat", "temperature": 0, "top_p": 0.5, "top_k": 7, "seed": 3, "stop": ["x"]})
    for kind in KINDS:
        sent = decode(make_adapter(kind).request_fields(fields, make_request(), "m"))
        assert (sent["temperature"], sent["top_p"], sent["top_k"], sent["seed"], sent["stop"]) == (0, 0.5, 7, 3, ["x"])


def test_tgi_refuses_a_top_p_of_one() -> None:
    sent = make_adapter("tgi").request_fields(encode({"model": "chat", "top_p": 1.0}), make_request(), "m")
    assert "top_p" not in sent


@pytest.mark.parametrize(
    ("kind", "name"),
    [("tandem", "max_completion_tokens"), ("vllm", "max_completion_tokens"), ("sglang", "max_completion_tokens"),
     ("tensorrt-llm", "max_completion_tokens"), ("tgi", "max_tokens"), ("llama.cpp", "max_tokens"),
     ("openvino", "max_completion_tokens"), ("openai", "max_tokens")],
)  # fmt: skip
def test_one_limit_under_the_name_the_engine_knows(kind: EngineKind, name: str) -> None:
    fields = encode({"model": "chat", "max_tokens": 500})
    sent = decode(make_adapter(kind).request_fields(fields, make_request(max_output_tokens=100), "m"))
    assert {key: value for key, value in sent.items() if key.startswith("max_")} == {name: 100}
    uncapped = decode(make_adapter(kind).request_fields(fields, make_request(), "m"))
    assert uncapped[name] == 500


@pytest.mark.parametrize("kind", KINDS)
def test_completions_have_openais_default_length(kind: EngineKind) -> None:
    sent = decode(
        make_adapter(kind).request_fields(encode({"prompt": "x"}), make_request(endpoint="/v1/completions"), "m")
    )
    assert sent["max_tokens"] == 16
    assert "max_completion_tokens" not in sent


@pytest.mark.parametrize("kind", KINDS)
def test_embeddings_are_left_alone(kind: EngineKind) -> None:
    fields = encode({"model": "chat", "input": ["a"]})
    sent = decode(make_adapter(kind).request_fields(fields, make_request(endpoint="/v1/embeddings"), "m"))
    assert sent == {"model": "m", "input": ["a"]}


def test_tier_goes_only_to_those_who_know_it() -> None:
    fields = encode({"model": "chat", "service_tier": "flex", "metadata": {"a": "b"}})
    with_tier = [k for k in KINDS if "service_tier" in make_adapter(k).request_fields(fields, make_request(), "m")]
    assert with_tier == ["tandem", "openai"]
    assert "metadata" not in make_adapter("tensorrt-llm").request_fields(fields, make_request(), "m")


@pytest.mark.parametrize(
    ("kind", "status", "body", "expected"),
    [
        ("openai", 400, documents.OPENAI_400, (400, "invalid_request_error", None, False)),
        ("vllm", 400, documents.VLLM_CONTEXT, (400, "invalid_request_error", "context_length_exceeded", False)),
        ("vllm", 404, documents.VLLM_OLD_404, (404, "invalid_request_error", None, False)),
        ("vllm", 500, b"Internal Server Error", (500, "server_error", None, True)),
        ("vllm", 422, documents.FASTAPI_422, (422, "invalid_request_error", None, False)),
        ("tensorrt-llm", 400, documents.TENSORRT_FLAT, (400, "invalid_request_error", None, False)),
        ("tensorrt-llm", 400, documents.TENSORRT_TEXT, (400, "invalid_request_error", None, False)),
        ("tgi", 429, documents.TGI_OVERLOADED, (429, "rate_limit_error", None, True)),
        ("tgi", 422, documents.TGI_VALIDATION, (400, "invalid_request_error", None, False)),
        ("tgi", 424, documents.TGI_GENERATION, (500, "server_error", None, True)),
        ("tgi", 500, documents.TGI_INCOMPLETE, (500, "server_error", None, True)),
        ("llama.cpp", 503, documents.LLAMA_LOADING, (503, "unavailable_error", None, True)),
        ("llama.cpp", 400, documents.LLAMA_CONTEXT, (400, "invalid_request_error", "context_length_exceeded", False)),
        ("sglang", 200, documents.SGLANG_EVENT, (500, "server_error", None, True)),
        ("vllm", 200, documents.VLLM_CONTEXT, (400, "invalid_request_error", "context_length_exceeded", False)),
        ("openai", 502, documents.NGINX_502, (502, "server_error", None, True)),
        ("openai", 503, b"", (503, "service_unavailable_error", None, True)),
        ("openai", 400, b'{"error":{"message":null,"code":"x"}}', (400, "invalid_request_error", None, False)),
        ("openai", 400, b"\xff\xfe", (400, "invalid_request_error", None, False)),
    ],
)  # fmt: skip
def test_error_shapes(kind: EngineKind, status: int, body: bytes, expected: tuple[object, ...]) -> None:
    """gw-03: a 400 keeps its status and is never tried again; overload and crashes may be."""
    error = make_adapter(kind).error(status, body)
    assert (error.status, error.type, error.code, error.is_retryable) == expected
    assert error.message


def test_error_messages_come_through() -> None:
    assert make_adapter("openai").error(400, documents.OPENAI_400).param == "messages"
    assert "maximum context length" in make_adapter("vllm").error(400, documents.VLLM_CONTEXT).message
    assert make_adapter("vllm").error(422, documents.FASTAPI_422).message == "body.messages: Field required"
    assert "<html>" not in make_adapter("openai").error(502, documents.NGINX_502).message
    assert len(make_adapter("openai").error(400, b"x" * 100_000).message) < 3000


def test_an_error_event_in_a_stream() -> None:
    """gw-02 (c): an error arrives under HTTP 200, in the middle."""
    for kind in KINDS:
        error = make_adapter(kind).event_error(documents.SGLANG_EVENT)
        assert error is not None
        assert (error.status, error.message) == (500, "out of memory")
    tgi = make_adapter("tgi").event_error(documents.TGI_OVERLOADED)
    assert tgi is not None
    assert tgi.status == 429


@pytest.mark.parametrize(
    "data",
    [
        b'{"choices":[{"delta":{"content":"{\\"error\\": 1}"}}]}',
        b'{"choices":[{"delta":{"content":"x"}}],"error":null}',
        b'{"choices":[{"delta":{"error":"x"}}]}',
        b"[DONE]",
        b'{"error',
    ],
)
def test_ordinary_events_are_no_errors(data: bytes) -> None:
    assert all(make_adapter(kind).event_error(data) is None for kind in KINDS)


def test_sglang_can_be_told_to_cancel() -> None:
    adapter, request = make_adapter("sglang"), make_request()
    assert decode(adapter.request_fields({}, request, "m"))["rid"] == "req-1"
    call = adapter.cancel_call(request)
    assert call is not None
    assert (call.path, msgspec.json.decode(call.body or b"")) == ("/abort_request", {"rid": "req-1"})
    assert adapter.cancel_call(make_request(num_answers=2)) is None
    assert all(make_adapter(kind).cancel_call(request) is None for kind in KINDS if kind != "sglang")
