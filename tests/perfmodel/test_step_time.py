"""The model of an engine's steps finds a known engine, through noise, outliers and a change of the engine."""

from __future__ import annotations

import random

import pytest

from tandem.perfmodel.priors import PRIORS, DeviceKind, StepCost, device_kind
from tandem.perfmodel.recent_steps import new_steps
from tandem.perfmodel.step_time import StepTimeModel

TRUE = StepCost(8e-3, 40e-6, 150e-6, 0.0)
SHAPES = ((10, 10), (512, 32), (1, 1), (64, 64))


def exact(num_tokens: int, num_seqs: int, cost: StepCost = TRUE) -> float:
    return cost.base_s + cost.token_s * num_tokens + cost.sequence_s * num_seqs


def drive(
    model: StepTimeModel, count: int, *, seed: int = 0, noise: float = 0.05, outliers: float = 0.0, slower: float = 1.0
) -> None:
    """Decode steps, every fourth one with a piece of a prompt in it."""
    rng = random.Random(seed)
    for _ in range(count):
        seqs = rng.randint(1, 64)
        tokens = seqs + (rng.randint(1, 448) if rng.random() < 0.25 else 0)
        seconds = slower * exact(tokens, seqs) * rng.lognormvariate(0.0, noise)
        model.observe_step(seconds * (20.0 if rng.random() < outliers else 1.0), tokens, seqs)


def worst_error(model: StepTimeModel, slower: float = 1.0) -> float:
    return max(abs(model.step_s(*shape) / (slower * exact(*shape)) - 1.0) for shape in SHAPES)


@pytest.mark.parametrize("kind", PRIORS)
def test_a_known_engine_is_found_whatever_the_first_guess(kind: DeviceKind) -> None:
    model = StepTimeModel(PRIORS[kind])
    drive(model, 30)
    assert worst_error(model) < 0.15
    drive(model, 400, seed=1)
    assert worst_error(model) < 0.05
    assert model.cost.base_s == pytest.approx(TRUE.base_s, rel=0.1)
    assert model.spread < 0.1


def test_outliers_move_it_little() -> None:
    model = StepTimeModel()
    drive(model, 100)
    drive(model, 500, seed=1, outliers=0.05)
    assert worst_error(model) < 0.15


def test_outliers_from_the_first_step_on() -> None:
    model = StepTimeModel()
    drive(model, 600, outliers=0.03)
    assert worst_error(model) < 0.25


def test_an_engine_that_becomes_three_times_slower_is_noticed_within_a_second_or_two_of_steps() -> None:
    model = StepTimeModel()
    drive(model, 500)
    drive(model, 60, seed=1, slower=3.0)
    assert worst_error(model, slower=3.0) < 0.2
    drive(model, 60, seed=2)
    assert worst_error(model) < 0.2, "and back"


def test_without_reports_our_own_requests_teach_it() -> None:
    """TTFT and TPOT of answers, with what was in flight: enough to predict both again."""
    model, rng = StepTimeModel(PRIORS["gpu"]), random.Random(3)
    for _ in range(400):
        running = rng.randint(1, 40)
        tokens = rng.randint(50, 6000)
        steps = -(-tokens // (model.token_budget - running))
        ttft = steps * exact(running, running) + TRUE.token_s * tokens
        model.observe_prefill(ttft * rng.lognormvariate(0, 0.2), tokens, running)
        model.observe_decode(exact(running, running) * rng.lognormvariate(0, 0.2), running)
    assert model.decode_step_s(20) == pytest.approx(exact(20, 20), rel=0.1)
    assert model.prefill_s(3000, 20) == pytest.approx(2 * exact(20, 20) + 3000 * TRUE.token_s, rel=0.15)


def test_an_engine_that_had_only_small_steps_is_not_thought_unable_of_larger_ones() -> None:
    model = StepTimeModel(TRUE)
    model.observe_step(exact(3, 3), 3, 3)
    assert model.prefill_s(500, 0) == pytest.approx(exact(500, 1), rel=0.05)


def test_a_long_prompt_takes_several_steps_and_each_carries_the_running_answers() -> None:
    model = StepTimeModel(TRUE)
    model._budget_seen = 512
    assert model.prefill_s(400, 0) == pytest.approx(exact(400, 1))
    assert model.prefill_s(1000, 12) == pytest.approx(2 * exact(12, 13) + 1000 * TRUE.token_s)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf"), 1e4])
def test_impossible_times_are_left_out(seconds: float) -> None:
    model = StepTimeModel()
    drive(model, 50)
    before = model.cost
    model.observe_step(seconds, 10, 10)
    assert model.cost == before


def test_predictions_are_sane_after_anything() -> None:
    model, rng = StepTimeModel(), random.Random(0)
    for _ in range(2000):
        model.observe_step(rng.choice([1e-5, 1e-3, 0.1, 5.0]), rng.randint(1, 4000), rng.randint(1, 300))
    assert all(0 <= c < 10 for c in model.cost)
    assert model.prefill_s(2000, 10) >= model.prefill_s(1000, 10) > 0
    assert model.decode_step_s(50) >= model.decode_step_s(5) > 0


def test_what_a_report_repeats_is_learnt_once() -> None:
    steps = [(0.01 + i * 1e-5, i, i) for i in range(1, 300)]
    assert new_steps((), steps[:128]) == steps[:128]
    assert new_steps(steps[126:128], steps[50:178]) == steps[128:178]
    assert new_steps(steps[126:128], steps[50:128]) == []
    assert new_steps(steps[10:12], steps[100:228]) == steps[100:228], "nothing is left of the report before"
    assert new_steps(steps[127:128], steps[127:130]) == steps[128:130]
    assert new_steps(steps[126:128], steps[127:130]) == steps[128:130], "only the last one is still there"


def test_device_kinds() -> None:
    assert device_kind(("cpu:0-1", "cpu:2")) == "cpu"
    assert device_kind(("cuda:0",)) == "gpu"
    assert device_kind(()) == "unknown"
