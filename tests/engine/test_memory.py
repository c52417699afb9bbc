"""Dividing the memory: computed, fitted, refused with what would fit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandem.config.engine import EngineConfig
from tandem.core.errors import ConfigError, MemoryTooSmall
from tandem.engine import memory
from tandem.engine.memory import plan_memory
from tests.engine.fake_runner import TINY

GIB = 1 << 30
# Two layers, one KV head of 4, float32: 64 bytes a token, 1,024 bytes a block of 16.
BLOCK_BYTES = 1024


@pytest.fixture(autouse=True)
def one_gib_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: GIB)


def test_blocks_take_their_share_of_what_is_free_less_the_weights() -> None:
    config = EngineConfig(memory_utilization=0.5, max_num_seqs=4096)
    plan = plan_memory(TINY, config, "float32", weights_bytes=GIB // 4)
    assert plan.block_bytes == BLOCK_BYTES
    assert plan.num_blocks == GIB // 4 // BLOCK_BYTES
    assert plan.kv_bytes == plan.num_blocks * BLOCK_BYTES
    assert TINY.kv_bytes_per_token(4) * 16 == BLOCK_BYTES


def test_a_smaller_type_gives_more_blocks() -> None:
    config = EngineConfig(max_num_seqs=4096)
    wide = plan_memory(TINY, config, "float32", 0).num_blocks
    assert plan_memory(TINY, config, "bfloat16", 0).num_blocks == 2 * wide


def test_the_context_is_fitted_to_the_memory() -> None:
    plan = plan_memory(TINY, EngineConfig(kv_memory_gib=100 * BLOCK_BYTES / GIB), "float32", 0)
    assert (plan.num_blocks, plan.max_model_len, plan.is_fitted) == (100, 1600, True)
    assert plan.full_length_requests == 1.0
    assert "shortened to fit" in " ".join(plan.describe())


def test_a_context_asked_for_that_does_not_fit_is_refused_with_what_would() -> None:
    config = EngineConfig(kv_memory_gib=100 * BLOCK_BYTES / GIB, max_model_len=2000)
    with pytest.raises(MemoryTooSmall, match=r"max_model_len is 2,000 tokens.*1,600 tokens would fit"):
        plan_memory(TINY, config, "float32", 0)


def test_a_context_longer_than_the_models_is_refused() -> None:
    with pytest.raises(ConfigError, match="made for 4,096 tokens"):
        plan_memory(TINY, EngineConfig(max_model_len=5000), "float32", 0)


def test_no_room_for_kv_says_what_to_change() -> None:
    with pytest.raises(MemoryTooSmall, match=r"1.00 GiB are free.*weights take 2.00 GiB"):
        plan_memory(TINY, EngineConfig(), "float32", weights_bytes=2 * GIB)


def test_no_more_blocks_than_all_seats_can_fill() -> None:
    plan = plan_memory(TINY, EngineConfig(max_num_seqs=2, max_model_len=160), "float32", 0)
    assert plan.num_blocks == 2 * 10


@pytest.mark.parametrize("block_size", [1, 2, 4, 8, 16, 32, 64, 128, 256])
def test_every_power_of_two_is_a_block_size(block_size: int) -> None:
    plan = plan_memory(TINY, EngineConfig(block_size=block_size, num_blocks=1000), "float32", 0)
    assert plan.block_bytes == 64 * block_size


def test_windowed_layers_need_fewer_blocks() -> None:
    spec = replace(TINY, layer_windows=(None, 32))
    full = plan_memory(TINY, EngineConfig(kv_memory_gib=1.0), "float32", 0)
    windowed = plan_memory(spec, EngineConfig(kv_memory_gib=1.0), "float32", 0)
    assert windowed.block_bytes * 2 == full.block_bytes, "a block serves one of the two groups"
    few = plan_memory(spec, EngineConfig(num_blocks=100, max_num_batched_tokens=16), "float32", 0)
    assert few.max_model_len > 1400, "nearly all blocks serve the layer that keeps everything"


def test_the_machine_is_asked_for_its_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert 0 < memory.available_bytes() < 1 << 50


def test_more_kv_than_is_free_is_refused_and_not_cut_in_silence() -> None:
    with pytest.raises(MemoryTooSmall, match=r"kv_memory_gib is 1000.*1.00 GiB are free: 0.75 GiB are left"):
        plan_memory(TINY, EngineConfig(kv_memory_gib=1000), "float32", GIB // 4)


def test_advice_names_the_setting_that_was_given() -> None:
    with pytest.raises(MemoryTooSmall, match=r"raise --num-blocks \(now 64\)"):
        plan_memory(TINY, EngineConfig(num_blocks=64, max_model_len=2000), "float32", 0)
    with pytest.raises(MemoryTooSmall, match="holds fewer than two tokens"):
        plan_memory(TINY, EngineConfig(kv_memory_gib=1e-9), "float32", 0)


def test_a_chunk_of_a_prompt_fits_beside_the_window() -> None:
    """Else the first step of a long prompt would wait for blocks that can never be free."""
    spec = replace(TINY, layer_windows=(32, 32))
    config = EngineConfig(num_blocks=20, max_num_batched_tokens=512)
    assert plan_memory(spec, config, "float32", 0).max_model_len == 20 * 16
    few = EngineConfig(num_blocks=20, max_num_batched_tokens=64)
    assert plan_memory(spec, few, "float32", 0).max_model_len == TINY.max_position
