"""What counts as a token, what as the first, and what as a failure."""

from __future__ import annotations

import json

import pytest

from tandem.loadtest.summary import summarise
from tests.loadtest.recorded import DONE, FINISH, content, delta, play, sse, usage


def test_the_first_token_is_the_first_content_and_not_the_role() -> None:
    """lt-01 (a): a role at 0.1 s is no token; content at 0.5, 0.6 and 0.7 s is."""
    record = play(
        (0.1, delta(role="assistant", content="")), *((t, content()) for t in (0.5, 0.6, 0.7)), (0.7, FINISH + DONE)
    )
    assert record.ttft_s == pytest.approx(0.5)
    assert record.output_tokens == 3
    summary = summarise([record])
    assert summary.itl_ms is not None
    assert summary.itl_ms.mean == pytest.approx(100)
    assert summary.token_source == "chunks"


def test_several_tokens_in_a_chunk_do_not_distort_the_time_per_token() -> None:
    """lt-01 (b): three chunks of five tokens; gaps between chunks are shown under a name of their own."""
    record = play(*((t, content()) for t in (0.5, 1.0, 1.5)), (1.5, FINISH + usage(15) + DONE))
    summary = summarise([record])
    assert record.output_tokens == 15
    assert record.tpot_s == pytest.approx(1.0 / 14)
    assert summary.tpot_ms is not None
    assert summary.itl_ms is not None
    assert summary.icl_ms is not None
    assert summary.itl_ms.mean == pytest.approx(100)  # 0.5 s for the five tokens of a chunk
    assert summary.icl_ms.mean == pytest.approx(500)
    assert summary.token_source == "usage"


def test_generation_ends_with_the_last_content_and_not_with_a_late_usage() -> None:
    """lt-01 (c): the usage chunk comes two seconds late; the last byte is then, the last token is not."""
    record = play((0.5, content()), (0.6, content()), (0.6, FINISH), (2.6, usage(2) + DONE))
    assert record.tpot_s == pytest.approx(0.1)
    assert record.e2el_s == pytest.approx(2.6)


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_is_a_first_token_and_content_has_a_time_of_its_own(field: str) -> None:
    """lt-01 (d): reasoning at 0.2 s, content at 0.9 s; both are shown."""
    record = play((0.2, delta(**{field: "hm"})), (0.9, content()), (0.9, FINISH + DONE))
    assert record.ttft_s == pytest.approx(0.2)
    assert record.first_content_after_s == pytest.approx(0.9)


def test_empty_chunks_are_neither_tokens_nor_first() -> None:
    """lt-01 (e)."""
    record = play((0.1, content("")), (0.4, content()), (0.5, content("")), (0.6, content()), (0.6, FINISH + DONE))
    assert record.ttft_s == pytest.approx(0.4)
    assert record.output_tokens == 2
    assert record.chunk_gaps_s == pytest.approx([0.2])


def test_events_may_come_in_any_pieces() -> None:
    whole = content() + content() + FINISH + DONE
    record = play(*((0.1 * k, whole[k : k + 1]) for k in range(len(whole))))
    assert record.is_ok
    assert record.output_tokens == 2


def test_completions_and_tool_calls_bring_tokens_too() -> None:
    text = play(
        (0.3, sse({"choices": [{"text": "x"}]})), (0.3, sse({"choices": [{"text": "", "finish_reason": "stop"}]}))
    )
    assert text.is_ok
    assert text.ttft_s == pytest.approx(0.3)
    called = play((0.3, delta(tool_calls=[{"index": 0}])), (0.4, FINISH + DONE))
    assert called.is_ok
    assert called.ttft_s == pytest.approx(0.3)


def test_pings_are_not_tokens() -> None:
    record = play((0.1, b": ping\n\n"), (0.4, content()), (0.4, FINISH + DONE))
    assert record.ttft_s == pytest.approx(0.4)


def test_an_error_in_mid_stream_is_an_error_although_the_status_was_200() -> None:
    """lt-02: a broken answer is a failure however it began."""
    record = play((0.1, content()), (0.2, sse({"error": {"message": "engine died"}})))
    assert record.status == "error"
    assert record.problem == "an error in mid-stream: engine died"
    named = play((0.1, content()), (0.2, b'event: error\ndata: {"message": "gone"}\n\n'))
    assert named.problem == "an error in mid-stream: gone"


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (503, json.dumps({"error": {"message": "full"}}).encode(), "HTTP 503: full"),
        (500, b"<html>oops", "HTTP 500: <html>oops"),
        (429, b"", "HTTP 429: no reason given"),
        (200, b"data: {broken\n\n", "an event of the stream is not as OpenAI's: '{broken'"),
        (200, b'data: {"choices": "x"}\n\n', "an event of the stream is not as OpenAI's"),
    ],
)
def test_a_refusal_or_nonsense_says_what_came(status: int, body: bytes, says: str) -> None:
    record = play((0.1, body), status=status)
    assert record.status == "error"
    assert record.problem.startswith(says)


def test_a_stream_that_breaks_off_is_a_failure_whichever_way() -> None:
    assert play((0.1, content()), broken="the connection was closed in the middle of the answer").status == "error"
    silent = play((0.1, content()))
    assert silent.problem == "the stream ended without [DONE] and without a finish reason"
    assert play((0.1, DONE)).problem == "the answer has no token"
