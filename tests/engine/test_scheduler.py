"""The scheduler's rules, one test each, on an engine without a network."""

from __future__ import annotations

import pytest

from tandem.core.sampling_params import SamplingParams
from tandem.engine.messages import NewRequest
from tests.engine.fake_runner import Harness, expected_tokens


def new(
    request_id: str,
    prompt: list[int],
    max_tokens: int = 4,
    *,
    n: int = 1,
    priority: int = 0,
    arrival_s: float = 0.0,
    salt: str | None = None,
    service_class: str = "interactive",
) -> NewRequest:
    return NewRequest(
        request_id=request_id,
        prompt_token_ids=prompt,
        sampling=SamplingParams(max_tokens=max_tokens, n=n, temperature=0),
        priority=priority,
        arrival_s=arrival_s,
        cache_salt=salt,
        service_class=service_class,  # type: ignore[arg-type]
    )


def prompt(length: int, start: int = 0) -> list[int]:
    return [(start + i) % 900 for i in range(length)]


def step_until(harness: Harness, request_id: str, num_tokens: int, limit: int = 500) -> int:
    for count in range(limit):
        if len(harness.tokens.get((request_id, 0), [])) >= num_tokens:
            return count
        harness.step()
    raise AssertionError(f"{request_id} has no {num_tokens} tokens after {limit} steps")


def test_a_long_prompt_stalls_neither_running_answers_nor_short_newcomers() -> None:
    """Bug case sch-01."""
    harness = Harness(num_blocks=400, block_size=16, max_num_batched_tokens=64, max_model_len=2048)
    harness.add(new("S1", prompt(10), 40))
    step_until(harness, "S1", 5)
    harness.add(new("L", prompt(1500, 50), 2, arrival_s=1.0))
    harness.step()
    harness.add(new("S2", prompt(10, 99), 4, arrival_s=2.0))
    before = len(harness.tokens["S1", 0])
    steps = step_until(harness, "S2", 1)
    assert steps == 1, "the short prompt is computed beside the long one"
    assert ("L", 0) not in harness.tokens
    assert len(harness.tokens["S1", 0]) == before + steps, "a running answer gets a token every step"
    harness.run()
    assert harness.tokens["L", 0] == expected_tokens(prompt(1500, 50), 2)


def test_an_endless_supply_of_short_prompts_does_not_starve_a_long_one() -> None:
    harness = Harness(num_blocks=400, block_size=16, max_num_batched_tokens=64, max_model_len=2048)
    harness.add(new("L", prompt(1500), 1))
    for count in range(100):
        harness.add(new(f"s{count}", prompt(30, count), 1, arrival_s=1.0 + count))
        harness.step()
        if ("L", 0) in harness.tokens:
            break
    assert count <= 1500 // 32 + 1, "the oldest prompt gets at least half of every step"


def test_arrival_decides_among_equals_and_priority_before_it() -> None:
    harness = Harness(max_num_seqs=1)
    harness.add(new("late", prompt(4), 1, arrival_s=2.0))
    harness.add(new("early", prompt(4), 1, arrival_s=1.0))
    harness.add(new("urgent", prompt(4), 1, arrival_s=3.0, priority=-1))
    harness.run()
    assert [key[0] for key in harness.reasons] == ["urgent", "early", "late"]


def test_better_priority_takes_a_seat_from_worse_and_nothing_is_lost() -> None:
    harness = Harness(max_num_seqs=1)
    harness.add(new("batch", prompt(6), 10, priority=10))
    step_until(harness, "batch", 3)
    harness.add(new("chat", prompt(5, 7), 2, priority=0, arrival_s=9.0))
    harness.run()
    assert [key[0] for key in harness.reasons] == ["chat", "batch"]
    assert harness.tokens["batch", 0] == expected_tokens(prompt(6), 10)
    assert harness.scheduler.counters.num_preemptions == 1


def test_the_newest_and_lowest_is_preempted_when_kv_runs_out() -> None:
    harness = Harness(num_blocks=10, block_size=4, max_model_len=40)
    harness.add(new("first", prompt(8), 20, arrival_s=1.0))
    harness.add(new("second", prompt(8, 50), 20, arrival_s=2.0))
    harness.run()
    assert harness.scheduler.counters.num_preemptions > 0
    assert next(iter(harness.reasons))[0] == "first", "the older one is never set back"
    for name, start in (("first", 0), ("second", 50)):
        assert harness.tokens[name, 0] == expected_tokens(prompt(8, start), 20)


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("length", range(3, 10))
@pytest.mark.parametrize("generated", range(1, 10))
def test_preempt_and_resume_around_block_borders(length: int, generated: int, caching: bool) -> None:
    """Bug case kv-02: total lengths 4k - 1, 4k and 4k + 1 at the moment of preemption, and while still in prefill."""
    harness = Harness(num_blocks=10, block_size=4, max_model_len=40, prefix_caching=caching)
    harness.add(new("a", prompt(length), 12, arrival_s=1.0))
    harness.add(new("b", prompt(length, 50), 12, arrival_s=2.0))
    step_until(harness, "b", generated)
    victim = max(harness.scheduler.running, key=lambda r: r.rank)
    plan = harness.scheduler.schedule()
    harness.scheduler._preempt(plan, victim)
    harness.check()
    # The plan made above is dropped: give back what it allocated beyond the known tokens by going on normally.
    harness.run()
    assert harness.tokens["b", 0] == expected_tokens(prompt(length, 50), 12)
    assert harness.tokens["a", 0] == expected_tokens(prompt(length), 12)
    assert harness.kv.pool.num_free + harness.kv.pool.num_cached == 10


def test_preempted_sequences_find_their_own_cached_blocks() -> None:
    """Bug case pc-02: high concurrency on a small pool, half of the prompts sharing nine tokens."""
    harness = Harness(num_blocks=12, block_size=4, max_num_seqs=8, max_model_len=48)
    for index in range(8):
        own = prompt(3, 100 + 10 * index)
        harness.add(new(str(index), (prompt(9) if index < 4 else []) + own, 20, arrival_s=float(index)))
    harness.run()
    assert harness.scheduler.counters.num_preemptions > 0
    for index in range(8):
        own = (prompt(9) if index < 4 else []) + prompt(3, 100 + 10 * index)
        assert harness.tokens[str(index), 0] == expected_tokens(own, 20)


def test_a_preempted_request_resumes_from_its_cached_blocks() -> None:
    harness = Harness(max_num_seqs=1, num_blocks=32)
    harness.add(new("batch", prompt(16), 10, priority=5))
    step_until(harness, "batch", 3)
    harness.add(new("chat", prompt(4, 70), 1))
    harness.run()
    assert harness.scheduler.counters.num_recomputed_tokens == (16 + 3) - 16


def test_the_prefix_cache_serves_equal_beginnings_and_counts_each_request_once() -> None:
    """Bug case m-04."""
    harness = Harness(num_blocks=20, block_size=4, max_model_len=28)
    for index in range(30):
        harness.add(new(f"r{index}", [index, *prompt(11, 17 * index)], 16, arrival_s=float(index)))
        harness.step()
    harness.run()
    counters = harness.scheduler.counters
    assert counters.num_preemptions > 0
    assert (counters.prefix_queries, counters.prefix_hits) == (30 * 12, 0)
    for index in range(10):
        harness.add(new(f"s{index}", [*prompt(8, 500), 900 - index, 1, 2, 3], 4))
        harness.run()
    assert (counters.prefix_queries, counters.prefix_hits) == (30 * 12 + 10 * 12, 9 * 8)


def test_salts_keep_prefixes_apart() -> None:
    """Bug case pc-04, the engine's part."""
    harness = Harness()
    cached: list[int] = []
    for index, salt in enumerate(["alpha", None, "beta", "alpha"]):
        harness.add(new(f"r{index}", prompt(17), 1, salt=salt))
        harness.step()
        cached.append(harness.scheduler.counters.prefix_hits - sum(cached))
        harness.run()
    assert cached == [0, 0, 0, 16]


def test_n_answers_share_the_prompt_and_copy_on_write() -> None:
    harness = Harness(num_blocks=64, block_size=4)
    harness.add(new("r", prompt(10), 6, n=3))
    harness.step()
    pool = harness.kv.pool
    assert pool.num_held == 3, "three answers, one prompt of ten tokens: three blocks"
    harness.step()
    assert pool.num_held == 5, "two copied the half-filled block, the last keeps it"
    assert len(harness.runner.plans[-1].block_copies) == 2
    harness.run()
    for answer in range(3):
        assert harness.tokens["r", answer] == expected_tokens(prompt(10), 6, answer)


def test_abort_ends_all_answers_at_once_in_every_window() -> None:
    for steps in range(5):
        harness = Harness(max_num_batched_tokens=8)
        harness.add(new("r", prompt(20), 8, n=2))
        for _ in range(steps):
            harness.step()
        harness.core.abort("r")
        harness.check()
        assert not harness.core.has_work
        assert harness.kv.pool.num_held == 0


def test_a_request_for_no_tokens_computes_its_prompt_and_ends() -> None:
    harness = Harness()
    harness.add(new("r", prompt(20), 0, n=2))
    harness.run()
    assert harness.reasons == {("r", 0): "length", ("r", 1): "length"}
    assert harness.tokens == {("r", 0): [], ("r", 1): []}


def test_the_context_bounds_the_answer() -> None:
    harness = Harness(max_model_len=24)
    harness.add(new("r", prompt(20), 99))
    harness.run()
    assert len(harness.tokens["r", 0]) == 4
    assert harness.reasons["r", 0] == "length"


def test_end_of_sequence_stops_at_once_unless_ignored() -> None:
    """Bug case stop-04: every end-of-sequence id counts."""
    wanted = expected_tokens(prompt(5), 8)
    for eos in (wanted[3], wanted[5]):
        harness = Harness(eos=frozenset({eos, 10_001}))
        harness.add(new("r", prompt(5), 8))
        harness.run()
        assert harness.tokens["r", 0] == wanted[: wanted.index(eos) + 1]
        assert harness.reasons["r", 0] == "stop"
        ignoring = NewRequest(
            request_id="r",
            prompt_token_ids=prompt(5),
            sampling=SamplingParams(max_tokens=8, ignore_eos=True),
            arrival_s=0.0,
        )
        harness = Harness(eos=frozenset({eos}))
        harness.add(ignoring)
        harness.run()
        assert harness.tokens["r", 0] == wanted


def test_engine_seconds_of_all_requests_add_up_to_the_busy_time() -> None:
    harness = Harness(max_num_batched_tokens=16)
    spent: dict[str, float] = {}
    for index in range(4):
        harness.add(new(str(index), prompt(10 + 7 * index, index), 5))
    while harness.core.has_work:
        for output in harness.core.step():
            if output.usage:
                spent[output.request_id] = output.usage.engine_s
    assert sum(spent.values()) == pytest.approx(harness.core.stats().busy_s)
    assert harness.core.stats().busy_s == harness.core.stats().num_steps


def test_stats_count_classes_slots_and_blocks() -> None:
    harness = Harness(num_blocks=64, block_size=4, max_num_seqs=2)
    harness.add(new("a", prompt(10), 5))
    harness.add(new("b", prompt(6, 40), 5, service_class="batch"))
    harness.add(new("c", prompt(6, 80), 5, service_class="batch", arrival_s=1.0))
    harness.step()
    stats = harness.core.stats()
    assert stats.num_running == {"interactive": 1, "batch": 1}
    assert stats.num_waiting == {"interactive": 0, "batch": 1}
    assert (stats.num_allocated_slots, stats.num_empty_slots) == (20, 4)
    assert stats.num_queued_prompt_tokens == 6
    assert stats.num_free_blocks + stats.num_cached_blocks + stats.num_held_blocks == stats.num_blocks == 64


def test_a_request_that_can_never_fit_fails_alone() -> None:
    harness = Harness(num_blocks=8, block_size=4, max_model_len=400)
    harness.add(new("small", prompt(8), 4, arrival_s=1.0))
    harness.add(new("huge", prompt(200), 4, n=2, arrival_s=0.0))
    harness.run()
    assert harness.reasons == {("huge", 0): "error", ("huge", 1): "error", ("small", 0): "length"}
    assert harness.tokens["small", 0] == expected_tokens(prompt(8), 4)
