"""Random steps over random paged memory, and kernels' errors against the reference; for the device script too."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from tandem.engine.kernels import reference as ops
from tandem.engine.kernels.step import GroupTensors, StepTensors
from tandem.engine.kernels.triton.attention import StepLayout, layout_of, paged_attention
from tandem.engine.kernels.triton.language import PagedKV
from tandem.engine.kernels.triton.rope_kv import Rope, rope_and_write_kv
from tandem.engine.loading.base import TextFiles
from tandem.engine.models.spec import ModelSpec, RopeScaling


@dataclass(frozen=True, kw_only=True)
class Case:
    """Sequences with `queries[s]` new tokens at the end of `contexts[s]`."""

    queries: tuple[int, ...]
    contexts: tuple[int, ...]
    heads: int = 4
    kv_heads: int = 2
    dim: int = 32
    block_size: int = 16
    window: int | None = None
    soft_cap: float | None = None
    dtype: torch.dtype = torch.float32
    kv_dtype: torch.dtype | None = None
    splits: int | None = None
    with_rows: bool = False
    """Tables lie in other rows than the sequences' own."""
    decides_on_device: bool = False
    """The layout says nothing of who has one query."""


class Paged:
    """Memory in which only what the case's sequences have computed is written: the rest is NaN, or -1 in tables."""

    def __init__(self, case: Case, device: torch.device, seed: int = 0) -> None:
        self.case = case
        self.generator = torch.Generator().manual_seed(seed)
        self.device = device
        size = case.block_size
        needed = [-(-context // size) for context in case.contexts]
        self.num_blocks = sum(needed) + 2
        blocks = torch.randperm(self.num_blocks, generator=self.generator).tolist()
        count = len(needed)
        self.rows = (
            torch.randperm(count + 2, generator=self.generator)[:count] if case.with_rows else torch.arange(count)
        )
        tables = torch.full((count + 2, max(needed)), -1, dtype=torch.int32)
        slots: list[int] = []
        for row, num_new, context, num_blocks in zip(
            self.rows.tolist(), case.queries, case.contexts, needed, strict=True
        ):
            own = [blocks.pop() for _ in range(num_blocks)]
            slots += [own[p // size] * size + p % size for p in range(context - num_new, context)]
            if case.window is not None:
                gone = max(0, context - num_new - case.window + 1) // size
                own[:gone] = [-1] * gone
            tables[row, :num_blocks] = torch.tensor(own, dtype=torch.int32)
        self.group = GroupTensors(tables.to(device), torch.tensor(slots).to(device))
        self.kv = self._memory(tables)
        self.step = StepTensors(
            token_ids=torch.zeros(sum(case.queries), dtype=torch.int32, device=device),
            positions=torch.cat(
                [torch.arange(c - n, c, dtype=torch.int32) for n, c in zip(case.queries, case.contexts, strict=True)]
            ).to(device),
            query_start=torch.tensor([0, *torch.tensor(case.queries).cumsum(0).tolist()], dtype=torch.int32).to(device),
            context_len=torch.tensor(case.contexts, dtype=torch.int32).to(device),
            groups=[self.group],
            logit_rows=torch.arange(sum(case.queries), device=device),
        )
        rows = self.rows.int().to(device) if case.with_rows else None
        self.layout: StepLayout = layout_of(list(case.queries), list(case.contexts), rows)
        if case.decides_on_device:
            self.layout = replace(self.layout, num_decodes=0, decides_on_device=True)

    def random(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        made = torch.randn(shape, generator=self.generator)
        return made.to(dtype or self.case.dtype).to(self.device)

    def _memory(self, tables: Tensor) -> PagedKV:
        case = self.case
        shape = (2, self.num_blocks, case.kv_heads, case.block_size, case.dim)
        written = torch.zeros(self.num_blocks, case.block_size, dtype=torch.bool)
        for row, context in zip(self.rows.tolist(), case.contexts, strict=True):
            for index, block in enumerate(tables[row].tolist()):
                if block >= 0:
                    written[block, : max(0, context - index * case.block_size)] = True
        content = self.random(*shape, dtype=torch.float32)
        hidden = ~written[None, :, None, :, None].to(self.device)
        if case.kv_dtype == torch.int8:
            scales = content.abs().amax(-1) / 127
            data = (content / scales[..., None]).round().to(torch.int8)
            return PagedKV(data, scales.masked_fill(hidden[..., 0], float("nan")))
        return PagedKV(content.masked_fill(hidden, float("nan")).to(case.kv_dtype or case.dtype))

    @property
    def wide_kv(self) -> Tensor:
        """The memory's content in float32."""
        data, scales = self.kv
        return data.float() if scales is None else data.float() * scales[..., None]


def attention_error(case: Case, device: torch.device) -> float:
    """Largest difference to the reference, which computes in float32 on the same stored numbers."""
    paged = Paged(case, device)
    queries = paged.random(sum(case.queries), case.heads, case.dim)
    scale = case.dim**-0.5
    plain = GroupTensors(paged.group.block_tables[paged.rows.to(device)], paged.group.slot_mapping)
    expected = ops.paged_attention(
        queries.float(), paged.wide_kv, paged.step, plain, scale=scale, window=case.window, soft_cap=case.soft_cap
    )
    got = paged_attention(
        queries,
        paged.kv,
        paged.step,
        paged.group,
        paged.layout,
        scale=scale,
        window=case.window,
        soft_cap=case.soft_cap,
        num_splits=case.splits,
    )
    assert got.dtype == queries.dtype
    return float((got.float() - expected).abs().max())


@dataclass(frozen=True, kw_only=True)
class RopeCase:
    tokens: int = 7
    heads: int = 4
    kv_heads: int = 2
    dim: int = 32
    block_size: int = 16
    bias: bool = False
    norms: bool = False
    dtype: torch.dtype = torch.float32
    kv_dtype: torch.dtype | None = None


def rope_errors(case: RopeCase, device: torch.device) -> tuple[float, float]:
    """Largest differences of queries and of stored KV (in steps of int8, if that is how it is stored)."""
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(case.dtype).to(device)

    num_heads = case.heads + 2 * case.kv_heads
    projected = random(case.tokens, num_heads * case.dim)
    bias = random(num_heads * case.dim) if case.bias else None
    q_norm, k_norm = (random(case.dim), random(case.dim)) if case.norms else (None, None)
    positions = torch.randint(0, 5000, (case.tokens,), generator=generator).to(device)
    frequencies = ops.rope_frequencies(case.dim, 10000.0, None).to(device)
    cos, sin = ops.rope_tables(positions, frequencies)
    num_blocks = case.tokens // case.block_size + 3
    slots = torch.randperm(num_blocks * case.block_size, generator=generator)[: case.tokens].to(device)
    slots[case.tokens // 2] = -1

    shape = (2, num_blocks, case.kv_heads, case.block_size, case.dim)
    kv_dtype = case.kv_dtype or case.dtype
    kv = PagedKV(torch.zeros(shape, dtype=kv_dtype, device=device))
    if kv_dtype == torch.int8:
        kv = kv._replace(scales=torch.zeros(shape[:-1], device=device))
    got = rope_and_write_kv(
        projected,
        kv,
        slots,
        Rope(cos[:, 0], sin[:, 0]),
        case.heads,
        bias=bias,
        q_norm=q_norm,
        k_norm=k_norm,
        eps=1e-6,
    )
    heads = (projected if bias is None else projected + bias).view(case.tokens, num_heads, case.dim)
    queries, keys, values = torch.split(heads, [case.heads, case.kv_heads, case.kv_heads], dim=1)
    if q_norm is not None and k_norm is not None:
        queries, keys = ops.rms_norm(queries, q_norm, 1e-6), ops.rms_norm(keys, k_norm, 1e-6)
    queries, keys = ops.apply_rope(queries, cos, sin), ops.apply_rope(keys, cos, sin)
    expected = torch.zeros(shape, dtype=case.dtype if kv_dtype == torch.int8 else kv_dtype, device=device)
    ops.write_kv(expected, keys, values, slots)
    query_error = float((got.float() - queries.float()).abs().max())
    if kv.scales is None:
        return query_error, float((kv.data.float() - expected.float()).abs().max())
    steps = (kv.data.float() * kv.scales[..., None] - expected.float()).abs() / (
        expected.float().abs().amax(-1, keepdim=True) / 127 + 1e-20
    )
    return query_error, float(steps.max())


class RandomCheckpoint:
    """A model of a given shape with random weights: products keep the scale of what they are given."""

    def __init__(self, spec: ModelSpec, device: torch.device | None = None) -> None:
        self.path = Path("random")
        self.spec = spec
        self.text = TextFiles("folder", self.path, {})
        self._device = device

    def names(self) -> frozenset[str]:
        raise NotImplementedError

    def shape(self, name: str) -> tuple[int, ...]:
        spec = self.spec
        part = name.split(".")[-2]
        q, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        matrices = {
            "embed_tokens": (spec.vocab_size, spec.hidden_size),
            "lm_head": (spec.vocab_size, spec.hidden_size),
            "q_proj": (q, spec.hidden_size),
            "k_proj": (kv, spec.hidden_size),
            "v_proj": (kv, spec.hidden_size),
            "o_proj": (spec.hidden_size, q),
            "gate_proj": (spec.intermediate_size, spec.hidden_size),
            "up_proj": (spec.intermediate_size, spec.hidden_size),
            "down_proj": (spec.hidden_size, spec.intermediate_size),
            "q_norm": (spec.head_dim,),
            "k_norm": (spec.head_dim,),
        }
        shape = matrices.get(part, (spec.hidden_size,))
        return shape[:1] if name.endswith(".bias") else shape

    def read(self, name: str, dtype: torch.dtype) -> Tensor:
        """The same numbers each time."""
        generator = torch.Generator(self._device or "cpu").manual_seed(sum(name.encode()))
        shape = self.shape(name)
        made = torch.randn(shape, generator=generator, device=self._device, dtype=dtype)
        if len(shape) == 2:
            return made.mul_(shape[1] ** -0.5)
        return made.mul_(0.2).add_(0.0 if self.spec.norm_plus_one or name.endswith(".bias") else 1.0)


TINY_LLAMA = ModelSpec(
    family="llama",
    num_layers=2,
    hidden_size=64,
    intermediate_size=96,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    vocab_size=211,
    max_position=512,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
    rope_scaling=RopeScaling(kind="llama3", factor=8.0, original_max_position=32),
)
TINY_QWEN2 = ModelSpec(
    family="qwen2",
    num_layers=2,
    hidden_size=60,
    intermediate_size=96,
    num_heads=3,
    num_kv_heads=1,
    head_dim=48,
    vocab_size=211,
    max_position=512,
    rms_norm_eps=1e-6,
    rope_theta=10000.0,
    tie_embeddings=True,
    qkv_bias=True,
)
TINY_GEMMA = ModelSpec(
    family="gemma3",
    num_layers=3,
    hidden_size=64,
    intermediate_size=96,
    num_heads=4,
    num_kv_heads=1,
    head_dim=32,
    vocab_size=211,
    max_position=512,
    rms_norm_eps=1e-6,
    rope_theta=1000000.0,
    local_rope_theta=10000.0,
    activation="gelu_tanh",
    tie_embeddings=True,
    qk_norm=True,
    post_norms=True,
    norm_plus_one=True,
    attention_scale=0.2,
    attention_soft_cap=20.0,
    logit_soft_cap=30.0,
    embedding_scale=8.0,
    layer_windows=(9, 9, None),
)
TINY = {"llama": TINY_LLAMA, "qwen2": TINY_QWEN2, "gemma": TINY_GEMMA}
