"""What engine, gateway and clients agree on: tiers, headers, usage, state, batch lines, the ledger."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from tandem.core.errors import InvalidRequest, NotFound, Overloaded
from tandem.protocol import headers
from tandem.protocol.batch import Batch, BatchResultLine, decode_batch_line
from tandem.protocol.errors import encode_error
from tandem.protocol.ledger import LedgerRow
from tandem.protocol.service_tier import class_of_tier, tier_used
from tandem.protocol.state import BlockEvicted, BlockStored, CacheResync, EngineState, KVEventBatch
from tandem.protocol.usage import TandemUsage, make_usage


def test_tiers() -> None:
    assert class_of_tier("flex") == "batch"
    for tier in (None, "auto", "default", "priority", "fast", "scale"):
        assert class_of_tier(tier) == "interactive"


def test_the_answer_says_which_tier_was_used() -> None:
    assert tier_used("priority", "interactive") == "priority"
    assert tier_used("auto", "interactive") == "default"
    assert tier_used(None, "interactive") == "default"
    assert tier_used("flex", "batch") == "flex"
    assert tier_used("priority", "batch") == "flex"
    assert tier_used("flex", "interactive") == "default"


def test_gateway_headers() -> None:
    given = {headers.SERVICE_CLASS: "batch", headers.PRIORITY: "-5", headers.CACHE_SALT: "s"}
    assert headers.read_engine_headers(given) == ("batch", -5, "s")
    assert headers.read_engine_headers({}) == (None, None, None)
    for name, value in [
        (headers.SERVICE_CLASS, "slow"),
        (headers.PRIORITY, "high"),
        (headers.PRIORITY, "99999999999"),
        (headers.CACHE_SALT, ""),
    ]:
        with pytest.raises(InvalidRequest) as caught:
            headers.read_engine_headers({name: value})
        assert caught.value.param == name


@pytest.mark.parametrize("request_id", ["", "a b", "a\nb", "é", "x" * 129, "<script>", None, ".hidden"])
def test_harmful_request_ids_are_dropped(request_id: str | None) -> None:
    assert headers.clean_request_id(request_id) is None


def test_harmless_request_ids_are_kept() -> None:
    assert headers.clean_request_id("req-1.a_B:9") == "req-1.a_B:9"


def test_errors_have_all_four_keys() -> None:
    assert msgspec.json.decode(encode_error(Overloaded("Full."))) == {
        "error": {"message": "Full.", "type": "rate_limit_error", "param": None, "code": "queue_full"}
    }
    wrong = NotFound("No.", param="model", code="model_not_found")
    assert msgspec.json.decode(encode_error(wrong))["error"]["code"] == "model_not_found"


def test_usage_adds_up_and_leaves_out_what_is_unknown() -> None:
    plain = msgspec.to_builtins(make_usage(5, 7, 3))
    assert plain == {
        "prompt_tokens": 5,
        "completion_tokens": 7,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    times = TandemUsage(queue_s=0.1, prefill_s=0.2, decode_s=0.3, engine_s=0.4, kv_block_s=0.5)
    assert msgspec.to_builtins(make_usage(5, 7, 3, times))["tandem"]["engine_s"] == 0.4


def test_state_survives_the_wire() -> None:
    state = EngineState(version="1", model="m", is_ready=True, running={"batch": 2})
    assert msgspec.json.decode(msgspec.json.encode(state), type=EngineState) == state


def test_kv_events_are_tagged_and_gaps_are_seen() -> None:
    stored = BlockStored(sequence=4, block_hashes=["aa"], parent_hash=None, block_size=16)
    batch = KVEventBatch(events=[stored, BlockEvicted(sequence=5, block_hashes=["aa"])])
    assert msgspec.json.decode(msgspec.json.encode(batch), type=KVEventBatch) == batch
    assert batch.follows(3)
    assert not batch.follows(2)
    assert KVEventBatch(events=[CacheResync(sequence=9, block_hashes=[])]).follows(2)
    assert KVEventBatch(events=[]).follows(2)


def test_batch_lines() -> None:
    line = decode_batch_line(b'{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"model":"m"}}')
    assert line.body == {"model": "m"}
    for bad, param in [
        (b'{"custom_id":"","url":"/v1/completions","body":{}}', "custom_id"),
        (b'{"url":"/v1/completions","body":{}}', "custom_id"),
        (b'{"custom_id":"a","url":"/v1/completions","body":"text"}', "body"),
        (b'{"custom_id":"a","url":"/x","body":{},"method":"GET"}', "method"),
        (b"[1,2]", None),
        (b"null", None),
        (b"{bad json", None),
        (b'{"custom_id":"\xff"', None),
    ]:
        with pytest.raises(InvalidRequest) as caught:
            decode_batch_line(bad)
        assert caught.value.param == param


def test_batch_objects_always_have_their_keys() -> None:
    batch = Batch(
        id="b",
        endpoint="/v1/completions",
        input_file_id="f",
        completion_window="24h",
        status="validating",
        created_at=1,
    )
    assert msgspec.to_builtins(batch)["output_file_id"] is None
    assert msgspec.to_builtins(BatchResultLine(id="r", custom_id="a"))["error"] is None


def test_a_ledger_row_must_make_sense() -> None:
    def row(time: datetime, cached: int) -> LedgerRow:
        return LedgerRow(
            request_id="r", time=time, tenant="t", key_id="k", service_class="batch", model="m", pool="p", replica="r",
            prompt_tokens=5, cached_tokens=cached, output_tokens=1, queue_s=0, prefill_s=0, decode_s=0, engine_s=0,
            kv_block_s=0, cost_micros=12, currency="USD", price_version="1", is_estimated=False, status="ok",
        )  # fmt: skip

    assert row(datetime.now(UTC), 5).cost_micros == 12
    with pytest.raises(AssertionError, match="zone"):
        row(datetime(2026, 1, 1), 0)
    with pytest.raises(AssertionError):
        row(datetime.now(UTC), 6)
