"""What is read of a request, what is refused, and what a long prompt costs."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tandem.core.errors import InvalidRequest
from tandem.gateway.context import Caller, Endpoint, RequestContext
from tandem.gateway.lengths import LengthEstimates
from tandem.gateway.parsing import Arrival, ParserConfig, RequestParser
from tandem.gateway.prefixes import CHUNK_BYTES, MAX_CHUNKS, prefix_hashes

CHAT: Endpoint = "/v1/chat/completions"


def parse(body: Any, endpoint: Endpoint = CHAT, caller: Caller | None = None, **options: Any) -> RequestContext:
    config, from_batch = options.get("config"), options.get("from_batch", False)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    arrival = Arrival(endpoint, data, "req-1", from_batch=from_batch)
    return RequestParser(options.get("lengths") or LengthEstimates(), config).parse(arrival, caller or Caller(), 0.0)


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hello there"}], **fields}


def test_the_ordinary() -> None:
    context = parse(chat(stream=True, stream_options={"include_usage": True}, n=2, max_tokens=7, user="u"))
    assert (context.model, context.is_stream, context.wants_usage) == ("m", True, True)
    assert (context.num_answers, context.max_output_tokens, context.output_tokens) == (2, 7, 14)
    assert context.session == "u"
    assert set(context.fields) == {"model", "messages", "stream", "stream_options", "n", "max_tokens", "user"}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{", None), (b"[1,2]", None), (b"", None), (b"null", None), (b'{"messages":[]}', "model"),
        (b'{"model":1,"messages":[]}', "model"), (b'{"model":"m"}', "messages"),
        (b'{"model":"m","messages":null}', "messages"), (b'{"model":"m","messages":{}}', "messages"),
        (b'{"model":"","messages":[]}', "model"), (chat(n=0), "n"), (chat(n=1000), "n"), (chat(n="2"), "n"),
        (chat(max_tokens=-1), "max_tokens"), (chat(stream="yes"), "stream"),
        (chat(service_tier="gold"), "service_tier"),
        (chat(stream_options={"include_usage": True}), "stream_options"), (b'{"model":"m","messages":[NaN]}', None),
        (b'{"model":"m","messages":[{"content":"' + b"\xff" + b'"}]', None), (b"[" * 100_000, None),
    ],
)  # fmt: skip
def test_what_is_malformed_is_refused_in_words(body: Any, param: str | None) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(body)
    assert caught.value.status == 400
    if param is not None:
        assert caught.value.param == param


def test_the_keys_rule_beats_the_batch_api_and_that_the_tier() -> None:
    assert parse(chat()).service_class == "interactive"
    assert parse(chat(service_tier="flex")).service_class == "batch"
    assert parse(chat(service_tier="default"), from_batch=True).service_class == "batch"
    assert parse(chat(), caller=Caller(forced_class="interactive"), from_batch=True).service_class == "interactive"


def test_the_least_cap_holds() -> None:
    config = ParserConfig(max_output_tokens={"interactive": 50, "batch": None})
    assert parse(chat(), config=config).max_output_tokens == 50
    assert parse(chat(max_tokens=10), config=config).max_output_tokens == 10
    assert parse(chat(max_tokens=10, max_completion_tokens=20), config=config).max_output_tokens == 20
    assert parse(chat(max_tokens=99), caller=Caller(max_output_tokens=5), config=config).max_output_tokens == 5


@pytest.mark.parametrize(
    ("prompt", "answers", "tokens"),
    [("abc", 1, None), (["a", "b", "c"], 3, None), ([1, 2, 3, 4], 1, 4), ([[1, 2], [3]], 2, 3)],
)
def test_prompts_are_counted(prompt: Any, answers: int, tokens: int | None) -> None:
    context = parse({"model": "m", "prompt": prompt}, "/v1/completions")
    assert context.num_answers == answers
    if tokens is not None:
        assert context.prompt_tokens == tokens


def test_embeddings_have_no_output_and_no_stream() -> None:
    context = parse({"model": "m", "input": ["a", "b"], "stream": True}, "/v1/embeddings")
    assert (context.output_tokens, context.is_stream, context.max_output_tokens) == (0, False, None)


def test_a_conversations_next_turn_shares_its_prefix() -> None:
    first = [{"role": "system", "content": "x" * 3000}, {"role": "user", "content": "one"}]
    after = [*first, {"role": "assistant", "content": "y" * 2000}, {"role": "user", "content": "two"}]
    a, b = parse(chat(messages=first)).prefix_hashes, parse(chat(messages=after)).prefix_hashes
    assert a
    assert b[: len(a)] == a
    assert len(b) > len(a)


def test_tenants_with_salts_share_no_prefix() -> None:
    prompt = b"x" * 5000
    assert not set(prefix_hashes(prompt, "one")) & set(prefix_hashes(prompt, "two"))
    assert len(prefix_hashes(b"x" * (CHUNK_BYTES * (MAX_CHUNKS + 50)), "")) == MAX_CHUNKS
    assert prefix_hashes(b"short", "") == ()


def test_a_difference_changes_all_entries_behind_it() -> None:
    one, two = bytearray(b"x" * CHUNK_BYTES * 4), bytearray(b"x" * CHUNK_BYTES * 4)
    two[CHUNK_BYTES * 2] = 0
    a, b = prefix_hashes(bytes(one), ""), prefix_hashes(bytes(two), "")
    assert [x == y for x, y in zip(a, b, strict=True)] == [True, True, False, False]


def test_a_prompt_of_100_000_tokens_costs_little() -> None:
    body = json.dumps(chat(messages=[{"role": "user", "content": "word and " * 44_444}])).encode()
    best_s = min(_timed(body) for _ in range(10))
    assert best_s < 0.003


def _timed(body: bytes) -> float:
    started = time.process_time()
    parse(body)
    return time.process_time() - started


def test_the_ratio_learns_from_usage_and_ignores_nonsense() -> None:
    lengths = LengthEstimates()
    assert lengths.prompt_tokens("m", 400) == 100
    for _ in range(50):
        lengths.saw_prompt("m", 2000, 1000)
    assert lengths.prompt_tokens("m", 400) == pytest.approx(200, rel=0.05)
    lengths.saw_prompt("m", 1_000_000, 1)
    lengths.saw_prompt("m", 0, 1000)
    lengths.saw_prompt("m", 10, 0)
    assert lengths.prompt_tokens("m", 400) == pytest.approx(200, rel=0.05)


def test_estimates_are_bounded() -> None:
    lengths = LengthEstimates(max_models=10)
    for number in range(1000):
        lengths.saw_prompt(f"m{number}", 400, 100)
    assert len(lengths._ratios) == 10
