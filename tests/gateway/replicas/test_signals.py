"""Every engine's documented figures become the one set of signals."""

from __future__ import annotations

import pytest

from tandem.config.deployment import EngineKind
from tandem.gateway.replicas.adapters import ADAPTERS, make_adapter
from tandem.gateway.replicas.replica import Signals
from tests.gateway.replicas import documents


def read(kind: EngineKind, body: bytes) -> Signals:
    return make_adapter(kind).parse_signals(body, 100.0)


def test_vllm() -> None:
    signals = read("vllm", documents.VLLM_NEW)
    assert (signals.running, signals.waiting, signals.kv_usage) == (3, 2, 0.25)
    assert (signals.block_size, signals.blocks_total, signals.blocks_free) == (16, 2000, 1500)
    totals = signals.totals
    assert (totals.ttft_sum_s, totals.ttft_count, totals.tpot_sum_s, totals.tpot_count) == (2, 10, 3, 100)
    assert (totals.prompt_tokens, totals.output_tokens, totals.preemptions) == (4000, 700, 1)
    assert (totals.prefix_queries, totals.prefix_hits) == (1000, 250)
    assert (totals.queue_sum_s, totals.queue_count) == (0.5, 10)


def test_older_vllm_has_other_names() -> None:
    signals = read("vllm", documents.VLLM_OLD)
    assert (signals.running, signals.waiting, signals.kv_usage) == (1, 0, 0.5)
    assert (signals.totals.tpot_sum_s, signals.totals.tpot_count) == (1.5, 50)
    assert (signals.totals.preemptions, signals.totals.prompt_tokens, signals.totals.output_tokens) == (7, 12, 34)
    assert signals.blocks_free is None


def test_sglang() -> None:
    signals = read("sglang", documents.SGLANG)
    assert (signals.running, signals.waiting, signals.kv_usage, signals.prefix_hit_rate) == (4, 1, 0.1, 0.3)
    assert (signals.block_size, signals.blocks_total, signals.blocks_free) == (1, 500, 450)
    assert (signals.totals.preemptions, signals.totals.prefix_hits, signals.totals.ttft_sum_s) == (2, 200, 2)


def test_tensorrt_llm() -> None:
    signals = read("tensorrt-llm", documents.TENSORRT_LLM)
    assert (signals.running, signals.waiting, signals.kv_usage, signals.prefix_hit_rate) == (5, 6, 0.75, 0.4)
    assert (signals.block_size, signals.blocks_total, signals.blocks_free) == (32, 400, 100)
    assert (signals.totals.output_tokens, signals.totals.preemptions) == (60, 1)


def test_tensorrt_llm_by_its_json_statistics() -> None:
    signals = read("tensorrt-llm", documents.TENSORRT_LLM_ITERATIONS)
    assert (signals.running, signals.waiting, signals.kv_usage) == (2, 3, 0.4)
    assert (signals.block_size, signals.blocks_total, signals.blocks_free) == (64, 100, 60)
    assert read("tensorrt-llm", b"[]").running is None


def test_tensorrt_llm_behind_triton() -> None:
    signals = read("tensorrt-llm", documents.TRITON)
    assert (signals.running, signals.waiting, signals.kv_usage) == (3, 2, 0.2)


def test_tgi() -> None:
    signals = read("tgi", documents.TGI)
    assert (signals.running, signals.waiting, signals.kv_usage) == (4, 7, 0.25)
    assert (signals.totals.tpot_sum_s, signals.totals.output_tokens) == (0.6, 320)


def test_llama_cpp() -> None:
    """`predicted_tokens_seconds` is tokens per second."""
    signals = read("llama.cpp", documents.LLAMA_CPP)
    assert (signals.running, signals.waiting, signals.kv_usage, signals.tpot_s) == (1, 3, None, 0.02)
    assert (signals.totals.prompt_tokens, signals.totals.output_tokens) == (300, 120)


def test_openvino() -> None:
    assert read("openvino", documents.OPENVINO).running == 4


def test_tandem() -> None:
    signals = read("tandem", documents.TANDEM_STATE)
    assert (signals.running, signals.waiting, signals.queued_prompt_tokens) == (3, 4, 900)
    assert signals.running_by_class == {"interactive": 2, "batch": 1}
    assert (signals.blocks_total, signals.blocks_free, signals.kv_usage) == (100, 80, 0.2)
    assert (signals.max_num_seqs, signals.max_model_len, signals.block_size) == (64, 2048, 16)
    assert signals.steps == ((0.02, 128, 3), (0.01, 3, 3))
    assert (signals.slots_allocated, signals.slots_empty, signals.heartbeat_age_s) == (320, 20, 0.01)


def test_tandem_before_its_first_report() -> None:
    signals = read("tandem", b'{"version":"0.1.0","model":"m","is_ready":true,"block_size":16,"max_num_seqs":4}')
    assert (signals.blocks_total, signals.blocks_free, signals.kv_usage, signals.slots_empty) == (None,) * 4
    assert signals.max_num_seqs == 4


@pytest.mark.parametrize("kind", ["vllm", "sglang", "tensorrt-llm", "tgi", "llama.cpp", "openvino"])
def test_metrics_that_are_missing_are_unknown_not_zero(kind: EngineKind) -> None:
    signals = read(kind, b"# HELP something else\nsomething_else 1\n")
    assert (signals.running, signals.waiting, signals.kv_usage, signals.tpot_s) == (None, None, None, None)
    assert signals.taken_s == 100.0


@pytest.mark.parametrize("bad", [b"NaN", b"-1"])
def test_nan_and_negative_are_unknown_not_zero(bad: bytes) -> None:
    body = documents.VLLM_NEW.replace(b'running{engine="0",model_name="m"} 3.0', b"running %b" % bad)
    signals = read("vllm", body)
    assert signals.running is None
    assert signals.waiting == 2


@pytest.mark.parametrize("kind", ADAPTERS)
def test_what_cannot_be_read_is_a_value_error(kind: EngineKind) -> None:
    for body in (b"<html>not here</html>", b"{}garbage"):
        with pytest.raises(ValueError, match=r"."):
            read(kind, body)


def test_means_are_of_what_happened_between_two_scrapes() -> None:
    first = read("vllm", documents.VLLM_NEW)
    body = documents.VLLM_NEW.replace(
        b'first_token_seconds_sum{engine="0",model_name="m"} 2.0', b"first_token_seconds_sum 3.0"
    )
    body = body.replace(b'first_token_seconds_count{engine="0",model_name="m"} 10.0', b"first_token_seconds_count 12.0")
    second = read("vllm", body).since(first)
    assert second.ttft_s == pytest.approx(0.5)
    assert second.tpot_s is None  # nothing new was observed


def test_an_engine_that_restarted_counts_from_zero_and_gives_no_negative_mean() -> None:
    before = read("vllm", documents.VLLM_NEW)
    after = read("vllm", documents.VLLM_OLD).since(before)
    assert after.tpot_s is None
    assert after.since(None).tpot_s is None


def test_stale_signals_keep_sizes_and_lose_load() -> None:
    stale = read("tandem", documents.TANDEM_STATE).stale()
    assert stale.is_stale
    assert (stale.max_num_seqs, stale.block_size, stale.blocks_total) == (64, 16, 100)
    assert (stale.running, stale.waiting, stale.kv_usage, stale.steps) == (None, None, None, ())
