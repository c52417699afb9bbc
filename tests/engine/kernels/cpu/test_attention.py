"""Paged attention beside a plain softmax over the same keys and values, gathered."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tandem.engine.kernels.cpu.decoder import CpuDecoder
from tandem.engine.kernels.cpu.native import Kernels
from tandem.engine.models.spec import ModelSpec

CASES: list[dict[str, Any]] = [
    {"heads": 6, "kv_heads": 2, "dim": 64, "block_size": 16},
    {"heads": 4, "kv_heads": 4, "dim": 32, "block_size": 1},
    {"heads": 4, "kv_heads": 1, "dim": 80, "block_size": 4, "window": 50},
    {"heads": 7, "kv_heads": 1, "dim": 128, "block_size": 32, "soft_cap": 5.0},
    {"heads": 2, "kv_heads": 2, "dim": 256, "block_size": 256, "window": 100},
    {"heads": 3, "kv_heads": 1, "dim": 48, "block_size": 64},
]
TOLERANCE = {"float32": 2e-5, "bfloat16": 0.02, "int8": 0.04}


def spec_of(case: dict[str, Any]) -> ModelSpec:
    return ModelSpec(
        family="llama",
        num_layers=1,
        hidden_size=32,
        intermediate_size=32,
        num_heads=case["heads"],
        num_kv_heads=case["kv_heads"],
        head_dim=case["dim"],
        vocab_size=8,
        max_position=1024,
        rms_norm_eps=1e-5,
        rope_theta=1e30,  # all frequencies but the first are 0; positions are 0 here, so nothing turns
        tie_embeddings=True,
        attention_soft_cap=case.get("soft_cap"),
        layer_windows=(case["window"],) if "window" in case else (),
    )


def decoder_of(kernels: Kernels, case: dict[str, Any], variant: str, kv: str, **more: Any) -> CpuDecoder:
    def read(name: str, dtype: torch.dtype) -> torch.Tensor:
        q, kv_size = case["heads"] * case["dim"], case["kv_heads"] * case["dim"]
        shapes = {
            "q_proj": (q, 32),
            "k_proj": (kv_size, 32),
            "v_proj": (kv_size, 32),
            "o_proj": (32, q),
            "embed_tokens": (8, 32),
        }
        return torch.zeros(shapes.get(name.split(".")[-2], (32,) if "norm" in name else (32, 32)), dtype=dtype)

    settings = {
        "block_size": case["block_size"],
        "num_blocks": 2048 // case["block_size"],
        "max_tokens": 512,
        "threads": 2,
    }
    return CpuDecoder(
        spec_of(case),
        read,
        kernels=kernels,
        variant=variant,
        kv_dtype=kv,  # type: ignore[arg-type]
        weight_dtype="float32",
        **(settings | more),
    )


def plain(case: dict[str, Any], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """q [Q, heads, dim] are the last queries of a context k, v [N, kv heads, dim]."""
    group = case["heads"] // case["kv_heads"]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,nhd->hqn", q.double(), k.double()) * case["dim"] ** -0.5
    if cap := case.get("soft_cap"):
        scores = cap * torch.tanh(scores / cap)
    position, other = torch.arange(len(k) - len(q), len(k))[:, None], torch.arange(len(k))[None, :]
    hidden = (other > position) | (other <= position - case.get("window", 1 << 30))
    return torch.einsum("hqn,nhd->qhd", scores.masked_fill(hidden, float("-inf")).softmax(-1), v.double()).float()


class Run:
    """Sequences with random keys and values, and their blocks in random order."""

    def __init__(self, decoder: CpuDecoder, case: dict[str, Any], lengths: list[int], seed: int = 3) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.decoder, self.case, size = decoder, case, case["block_size"]
        self.qkv = [
            torch.randn(n, case["heads"] + 2 * case["kv_heads"], case["dim"], generator=generator) for n in lengths
        ]
        longest = -(-max(lengths) // size)
        self.tables = (
            torch.randperm(decoder.num_blocks, generator=generator)[: len(lengths) * longest]
            .reshape(len(lengths), longest)
            .int()
        )

    def step(self, parts: list[tuple[int, int, int]]) -> list[torch.Tensor]:
        """parts: (sequence, first position, end)."""
        size = self.case["block_size"]
        slots = [int(self.tables[s, p // size]) * size + p % size for s, a, b in parts for p in range(a, b)]
        counts = [b - a for _, a, b in parts]
        out = self.decoder.attention(
            0,
            torch.cat([self.qkv[s][a:b] for s, a, b in parts]),
            torch.zeros(len(slots), dtype=torch.int32),
            torch.tensor([0, *counts]).cumsum(0).int(),
            torch.tensor([b for _, _, b in parts], dtype=torch.int32),
            [self.tables[[s for s, _, _ in parts]].contiguous()],
            [torch.tensor(slots, dtype=torch.int32)],
        )
        return list(torch.split(out, counts))

    def expected(self, s: int, a: int, b: int) -> torch.Tensor:
        heads, kv_heads = self.case["heads"], self.case["kv_heads"]
        q, k, v = torch.split(self.qkv[s][:b], [heads, kv_heads, kv_heads], 1)
        return plain(self.case, q[a:b], k, v)


@pytest.mark.parametrize("kv", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"d{c['dim']}b{c['block_size']}")
def test_against_plain_softmax(kernels: Kernels, variant: str, case: dict[str, Any], kv: str) -> None:
    run = Run(decoder_of(kernels, case, variant, kv), case, [130, 1, 77, 300])
    before = [(0, 0, 100), (2, 0, 76), (3, 0, 299)]
    mixed = [(0, 100, 130), (1, 0, 1), (2, 76, 77), (3, 299, 300)]
    for parts in (before, mixed):
        for part, out in zip(parts, run.step(parts), strict=True):
            assert (out - run.expected(*part)).abs().max() < TOLERANCE[kv], part


@pytest.mark.parametrize("kv", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"d{c['dim']}b{c['block_size']}")
def test_bits_do_not_depend_on_batch_chunks_or_threads(kernels: Kernels, case: dict[str, Any], kv: str) -> None:
    lengths = [600, 530]
    together = Run(decoder_of(kernels, case, kernels.best, kv, threads=1), case, lengths)
    whole = [
        torch.cat([together.step([(s, 0, 300)])[0], together.step([(s, 300, n)])[0]]) for s, n in enumerate(lengths)
    ]
    # Alone, with three threads, the last tokens are decodes whose context is split among them.
    split = Run(decoder_of(kernels, case, kernels.best, kv, threads=3), case, lengths)
    for s, n in enumerate(lengths):
        pieces = [split.step([(s, a, b)])[0] for a, b in ((0, 1), (1, 290), (290, n - 4))]
        pieces += [split.step([(s, p, p + 1)])[0] for p in range(n - 4, n - 2)]
        assert torch.equal(torch.cat(pieces), whole[s][: n - 2])
    pairs = [
        split.step([(0, lengths[0] - i, lengths[0] - i + 1), (1, lengths[1] - i, lengths[1] - i + 1)]) for i in (2, 1)
    ]
    for s, n in enumerate(lengths):
        assert torch.equal(torch.cat([pair[s] for pair in pairs]), whole[s][n - 2 :])


def test_what_another_request_left_in_a_block_does_no_harm(kernels: Kernels, variant: str) -> None:
    case = CASES[0]
    run = Run(decoder_of(kernels, case, variant, "bfloat16"), case, [200])
    run.qkv[0].fill_(float("nan"))
    run.step([(0, 0, 200)])
    run.qkv[0].normal_()
    assert (run.step([(0, 0, 70)])[0] - run.expected(0, 0, 70)).abs().max() < TOLERANCE["bfloat16"]
    assert (run.step([(0, 70, 71)])[0] - run.expected(0, 70, 71)).abs().max() < TOLERANCE["bfloat16"]
