"""What is seen and changed in a stream of events, byte for byte, however the reads are cut."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tandem.gateway.replicas.openai import OpenAIAdapter
from tandem.gateway.stream import StreamScanner
from tandem.gateway.upstream.failures import AnswerTooLarge

ADAPTER = OpenAIAdapter()


def scanner(**options: Any) -> StreamScanner:
    return StreamScanner(ADAPTER.event_error, **options)


def chunk(content: str | None = None, finish: str | None = None, model: str = "m", **more: Any) -> bytes:
    delta = {} if content is None else {"content": content}
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return event({"id": "c", "model": model, "choices": [choice], **more})


def event(data: Any) -> bytes:
    text = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
    return f"data: {text}\n\n".encode()


USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
ROLE = event({"model": "m", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
STREAM = [ROLE, chunk("a"), chunk("b\u00e9"), chunk(finish="stop")]
END = [event({"model": "m", "choices": [], "usage": USAGE}), event("[DONE]")]


def test_untouched_bytes_are_the_same_object() -> None:
    scan = scanner()
    scan.feed(STREAM[0] + STREAM[1])
    read = chunk("more")
    assert scan.feed(read) is read


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 10_000])
def test_reads_cut_anywhere_give_the_same(size: int) -> None:
    whole = b"".join(STREAM + END)
    scan = scanner(drops_usage=True)
    out = b"".join(scan.feed(whole[at : at + size]) for at in range(0, len(whole), size))
    assert out == b"".join([*STREAM, END[1]])
    assert scan.usage is not None
    assert scan.usage.prompt_tokens == 5
    assert scan.is_done
    assert scan.num_events == 4


@pytest.mark.parametrize("size", [1, 5, 10_000])
@pytest.mark.parametrize("line_end", [b"\r\n", b"\r"])
def test_other_line_ends_are_understood(size: int, line_end: bytes) -> None:
    whole = b"".join(STREAM + END).replace(b"\n", line_end)
    scan = scanner()
    out = b"".join(scan.feed(whole[at : at + size]) for at in range(0, len(whole), size))
    assert out == b"".join(STREAM + END)


def test_the_role_alone_is_no_content() -> None:
    scan = scanner()
    assert scan.feed(ROLE) == ROLE
    assert not scan.has_content
    scan.feed(chunk("a"))
    assert scan.has_content


@pytest.mark.parametrize(
    "delta", [{"reasoning_content": "x"}, {"tool_calls": [{"index": 0}]}, {"refusal": "no"}, {"reasoning": "x"}]
)
def test_other_kinds_of_content_count(delta: dict[str, Any]) -> None:
    scan = scanner()
    scan.feed(event({"choices": [{"index": 0, "delta": delta}]}))
    assert scan.has_content


def test_text_completions_count() -> None:
    scan = scanner()
    scan.feed(event({"choices": [{"index": 0, "text": "x", "finish_reason": None}]}))
    assert scan.has_content


def test_a_model_that_writes_the_telltale_words_is_passed_on() -> None:
    scan = scanner(drops_usage=True)
    scan.feed(chunk("a"))
    for text in ("error", '"error"', "[DONE]", '{"error": {"message": "x"}}', '"usage":{', "data: [DONE]\n\n"):
        read = chunk(text)
        assert scan.feed(read) == read
    assert scan.error is None
    assert not scan.is_done


def test_an_error_event_is_kept_back_and_nothing_comes_after_it() -> None:
    scan = scanner()
    out = scan.feed(chunk("a") + event({"error": {"message": "boom", "code": 500}}) + event("[DONE]"))
    assert out == chunk("a")
    assert scan.error is not None
    assert scan.error.message == "boom"
    assert not scan.is_done


def test_usage_beside_choices_stays() -> None:
    scan = scanner(drops_usage=True)
    both = chunk("a", usage=USAGE)
    assert scan.feed(both) == both
    assert scan.usage is not None


@pytest.mark.parametrize("space", ["", " "])
def test_an_alias_replaces_the_name_only_where_it_is_the_name(space: str) -> None:
    scan = scanner(model='my "alias"')
    text = '{"model":' + space + '"m","choices":[{"index":0,"delta":{"content":"\\"model\\":\\"m\\""}}]}'
    parsed = json.loads(scan.feed(f"data: {text}\n\n".encode())[6:])
    assert parsed["model"] == 'my "alias"'
    assert parsed["choices"][0]["delta"]["content"] == '"model":"m"'


@pytest.mark.parametrize(("last", "is_finished"), [(chunk(finish="stop"), True), (chunk("x"), False)])
def test_an_end_without_done_needs_a_reason(last: bytes, is_finished: bool) -> None:
    scan = scanner(drops_usage=True)
    scan.feed(chunk("a"))
    scan.feed(last)
    scan.feed(END[0])
    assert scan.is_finished is is_finished


def test_pings_pass_but_count_for_nothing() -> None:
    scan = scanner()
    assert scan.feed(b": ping\n\n") == b""
    scan.feed(chunk("a"))
    assert scan.feed(b": ping\n\n") == b": ping\n\n"
    assert scan.num_events == 1


def test_half_an_event_never_goes_out() -> None:
    scan = scanner()
    assert scan.feed(chunk("a") + b'data: {"choi') == chunk("a")


def test_what_is_no_json_is_an_error() -> None:
    scan = scanner()
    assert scan.feed(b"data: <html>\n\n") == b""
    assert scan.error is not None
    assert scan.error.is_retryable


def test_an_event_has_a_limit() -> None:
    scan = scanner(max_event_bytes=1000)
    with pytest.raises(AnswerTooLarge, match="1000"):
        scan.feed(b"data: " + b"x" * 2000)
