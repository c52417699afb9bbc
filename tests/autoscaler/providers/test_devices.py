"""Cores, GPUs and memory are divided, and what can't be is said before anything starts."""

from __future__ import annotations

import pytest

from tandem.autoscaler.providers import devices
from tandem.autoscaler.providers.base import EngineSpec
from tandem.autoscaler.providers.devices import Placement, divide, parse_devices, part, split
from tandem.core.errors import ConfigError


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "machine_cores", lambda: list(range(8)))


def test_forms() -> None:
    assert parse_devices(["cpu:0-3"]).cores == (0, 1, 2, 3)
    assert parse_devices(["cpu:5", "cpu:1"]).cores == (1, 5)
    assert parse_devices(["cpu"]).cores == tuple(range(8))
    assert parse_devices(["cuda:0-1"]).gpus == (0, 1)
    assert parse_devices(["cuda"]).gpus == (0,)


@pytest.mark.parametrize("device", ["gpu:0", "cpu:a", "cpu:3-1", "cpu:-1", "", "cuda:0,1", "cpu:0-9"])
def test_what_is_wrong_is_said(device: str) -> None:
    with pytest.raises(ConfigError, match="devices"):
        parse_devices([device])


def test_pools_without_devices_divide_what_nobody_named() -> None:
    placed = divide([EngineSpec("a", "m", devices=("cpu:0-1",)), EngineSpec("b", "m"), EngineSpec("c", "m")], 0.8)
    assert placed["a"].cores == (0, 1)
    assert placed["b"].cores == (2, 3, 4)
    assert placed["c"].cores == (5, 6, 7)


def test_one_pool_alone_gets_the_machine() -> None:
    assert divide([EngineSpec("a", "m")], 0.8)["a"] == Placement(tuple(range(8)), (), 0.8)


def test_several_models_share_memory_evenly_or_as_they_say() -> None:
    even = divide([EngineSpec("a", "m", devices=("cpu",)), EngineSpec("b", "n", devices=("cpu",))], 0.8)
    assert even["a"].memory_share == even["b"].memory_share == pytest.approx(0.4)
    said = divide([EngineSpec("a", "m", memory_share=0.6), EngineSpec("b", "n")], 0.8)
    assert [said["a"].memory_share, said["b"].memory_share] == pytest.approx([0.6, 0.2])


def test_each_gpu_has_its_own_memory() -> None:
    specs = [EngineSpec("a", "m", devices=("cuda:0",)), EngineSpec("b", "m", devices=("cuda:1",)),
             EngineSpec("c", "m", devices=("cuda:1",)), EngineSpec("d", "m", devices=("cpu",))]  # fmt: skip
    placed = divide(specs, 0.8)
    assert [placed[name].memory_share for name in "abcd"] == [0.8, 0.4, 0.4, 0.8]


def test_more_memory_than_there_is() -> None:
    with pytest.raises(ConfigError, match=r"1\.2"):
        divide([EngineSpec("a", "m", memory_share=0.6), EngineSpec("b", "n", memory_share=0.6)], 0.8)
    with pytest.raises(ConfigError, match="has no memory"):
        divide([EngineSpec("a", "m", memory_share=0.8), EngineSpec("b", "n")], 0.8)


def test_instances_of_a_pool_divide_its_devices() -> None:
    pool = Placement((0, 1, 2, 3), (), 0.8)
    assert [part(pool, index, 2).cores for index in range(2)] == [(0, 1), (2, 3)]
    assert part(pool, 0, 2).memory_share == 0.4
    gpus = Placement((), (0, 1), 0.8)
    assert [part(gpus, index, 2) for index in range(2)] == [Placement((), (0,), 0.8), Placement((), (1,), 0.8)]
    assert part(Placement((), (0,), 0.8), 1, 2) == Placement((), (0,), 0.4)
    assert part(pool, 0, 1) == pool


def test_split_loses_and_doubles_nothing() -> None:
    assert split(range(7), 3) == [[0, 1], [2, 3], [4, 5, 6]]
    assert split([0], 3) == [[0], [0], [0]]
    assert split([], 2) == [[], []]


def test_environment_hides_other_gpus_and_sizes_thread_pools() -> None:
    assert Placement((0, 1), ()).environment() == {
        "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE",
    }  # fmt: skip
    assert Placement((), (1, 2)).environment() == {"CUDA_VISIBLE_DEVICES": "1,2"}
