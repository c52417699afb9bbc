"""Bug case pc-04: names of blocks depend on all that their KV depends on, and on nothing that changes by process."""

from __future__ import annotations

import subprocess
import sys

from tandem.core.request import Rank, Request
from tandem.core.sampling_params import SamplingParams
from tandem.core.types import BlockHash
from tandem.engine.kvcache.hashing import BlockHasher


def names(tokens: list[int], *, salt: str | None = None, size: int = 2, seed: str = "") -> list[BlockHash]:
    request = Request("r", tokens, SamplingParams(), Rank(0, 0.0, 0), cache_salt=salt)
    BlockHasher(size, seed).extend(request)
    return request.block_hashes


def test_only_full_blocks_have_names() -> None:
    assert [len(names([1] * count)) for count in (1, 2, 3, 4)] == [0, 1, 1, 2]


def test_names_differ_where_tokens_do() -> None:
    assert names([1, 23]) != names([12, 3])
    assert names([1, 2, 9, 9])[1] != names([3, 4, 9, 9])[1], "an equal block behind a different one is another block"
    assert len(names([1, 2])[0]) == 32


def test_salt_seed_and_block_size_are_part_of_the_name() -> None:
    plain = names([1, 2])
    others = [names([1, 2], salt="a"), names([1, 2], salt="b"), names([1, 2], salt=""), names([1, 2], seed="s")]
    assert len({plain[0], *(o[0] for o in others), names([1, 2, 3, 4], size=4)[0]}) == 6
    assert names([1, 2], salt="a") == names([1, 2], salt="a")


def test_a_salt_can_not_pass_for_another_kind_of_key() -> None:
    assert names([1, 2], salt="x;adapter:1:y") != names([1, 2], salt="x")


def test_names_are_extended_not_recomputed() -> None:
    request = Request("r", [1, 2, 3], SamplingParams(), Rank(0, 0.0, 0))
    hasher = BlockHasher(2)
    hasher.extend(request)
    request.token_ids += [4, 5]
    hasher.extend(request)
    assert request.block_hashes == names([1, 2, 3, 4, 5])


def test_names_do_not_depend_on_pythons_hash_seed() -> None:
    script = "from tests.engine.kvcache.test_hashing import names; print(names([1, 2], salt='t')[0].hex())"
    seen = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert seen == {names([1, 2], salt="t")[0].hex().encode() + b"\n"}
