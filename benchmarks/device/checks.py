"""Correctness: kernels, operators and runners against plain torch. Sizes as models have them, and few sequences."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import torch
from benchmarks.device.common import make_plan, make_request
from benchmarks.device.models import compiled_small, paged_small, random_matrix
from tests.engine.kernels.triton.cases import TINY, Case, RandomCheckpoint, RopeCase, attention_error, rope_errors

from tandem.core.sampling_params import SamplingParams
from tandem.engine.kernels import ops, reference
from tandem.engine.kernels.ops.activations import quantize_tokens
from tandem.engine.kernels.ops.products import _matrix as _plain
from tandem.engine.kernels.step import GroupTensors, StepTensors
from tandem.engine.kernels.triton.activation import gated
from tandem.engine.kernels.triton.norms import add_rms_norm
from tandem.engine.kernels.triton.sampling import DrawParams, argmax, draw, draw_likely
from tandem.engine.kvcache.layer_groups import LayerGroup, group_layers
from tandem.engine.models.decoder import Decoder
from tandem.engine.models.spec import ModelSpec
from tandem.engine.sampling.draw import draw as draw_on_host


class Check(NamedTuple):
    name: str
    error: float
    allowed: float
    seconds: float

    @property
    def passes(self) -> bool:
        return self.error <= self.allowed


def checks(device: torch.device) -> Iterator[tuple[str, float, Callable[[], float]]]:
    """Name, allowed error, and what measures it. Sizes as models have them; a few sequences, so that it stays short."""
    bf16, int8, f32 = torch.bfloat16, torch.int8, torch.float32
    mixed: dict[str, Any] = {"queries": (1, 1, 7, 40), "contexts": (65, 16, 7, 100), "with_rows": True}
    llama: dict[str, Any] = {"heads": 32, "kv_heads": 8, "dim": 128} if device.type == "cuda" else {}
    attention = {
        "llama shape": (0.03, Case(**mixed, **llama, dtype=bf16)),
        "int8 KV": (0.03, Case(**mixed, **llama, dtype=bf16, kv_dtype=int8)),
        "float32": (1e-4, Case(**mixed, heads=4, kv_heads=2, dim=64)),
        "float32 queries, bf16 KV": (1e-3, Case(**mixed, dim=64, kv_dtype=bf16)),
        "gemma shape": (0.03, Case(**mixed, heads=4, kv_heads=1, dim=256, dtype=bf16, window=33, soft_cap=50.0)),
        "odd heads, block size 1": (1e-4, Case(**mixed, heads=7, kv_heads=1, dim=80, block_size=1)),
        "block size 64": (1e-4, Case(**mixed, block_size=64)),
        "splits": (0.03, Case(queries=(1, 1), contexts=(300, 17), splits=4, **llama, dtype=bf16)),
        "splits and window": (1e-4, Case(queries=(1, 1), contexts=(300, 17), splits=3, window=90)),
    }
    for name, (allowed, case) in attention.items():
        yield f"attention: {name}", allowed, partial(attention_error, case, device)
    ropes = {
        "plain": (0.07, RopeCase(**llama, dtype=bf16)),
        "bias, norms": (1e-5, RopeCase(bias=True, norms=True, dim=80)),
        "int8 KV": (0.51, RopeCase(dim=64, kv_dtype=int8)),
    }
    for name, (allowed, rope) in ropes.items():
        yield f"rope and KV write: {name}", allowed, partial(_rope_error, rope, device)
    yield "norms, float32", 1e-5, lambda: _norm_error(f32, device)
    yield "norms, bfloat16", 0.13, lambda: _norm_error(bf16, device)
    yield "gated activations", 1e-5, lambda: _gated_error(device)
    for kind, group in (("int8", 0), ("int8", 128), ("int4x2", 128), ("fp8", 0)):
        for tokens in (1, 40, 200):
            name = f"quantised product: {kind}, group {group}, {tokens} tokens"
            yield name, 0.02, partial(_product_error, kind, group, tokens, device)
    yield "quantised product: int8 inputs", 0.02, partial(_product_error, "int8", 0, 33, device, int8_inputs=True)
    yield "draws that differ, of 192", 0, lambda: _draws_that_differ(device)
    for name, spec in TINY.items():
        yield f"paged runner: tokens that differ, {name}", 0, partial(_tokens_that_differ, spec, device, compiled=False)
    for name, spec in TINY.items():
        yield f"fused graphs: tokens that differ, {name}", 0, partial(_tokens_that_differ, spec, device, compiled=True)


def _rope_error(case: Any, device: torch.device) -> float:
    return max(rope_errors(case, device))


def _norm_error(dtype: torch.dtype, device: torch.device) -> float:
    x, residual, weight, inner = (torch.randn(5, 4096).to(dtype).to(device) for _ in range(4))
    total = residual + reference.rms_norm(x, inner[0], 1e-5)
    got = add_rms_norm(x, residual, weight[0], 1e-5, inner_weight=inner[0])
    expected = reference.rms_norm(total, weight[0], 1e-5)
    return float(max((got - expected).abs().max(), (residual - total).abs().max()))


def _gated_error(device: torch.device) -> float:
    both = torch.randn(3, 2 * 3000).to(device) * 3
    gate, up = both.chunk(2, dim=-1)
    pairs = (
        (gated(both, "silu"), reference.silu_mul(gate, up)),
        (gated(both, "gelu_tanh"), reference.gelu_tanh_mul(gate, up)),
    )
    return float(max((got - expected).abs().max() for got, expected in pairs))


def _draws_that_differ(device: torch.device) -> int:
    """Of 64 rows each: argmax, all, likely set; over a vocabulary of some pieces."""
    logits = torch.randn(64, 9000) * 3
    uniforms = torch.rand(64, dtype=torch.float64)
    column = torch.ones(64)
    there = [t.to(device) for t in (column * 0.8, column.int() * 50, column.double() * 0.9, column * 0.01, uniforms)]
    params = DrawParams(*there)
    narrow = SamplingParams(temperature=0.8, top_k=50, top_p=0.9, min_p=0.01)
    on_device = logits.to(device)
    pairs = [
        (argmax(on_device).token.tolist(), logits.argmax(1).tolist()),
        (draw(on_device, params).tolist(), _each(logits, SamplingParams(temperature=0.8), uniforms, draw_on_host)),
        (draw_likely(on_device, params).tolist(), _each(logits, narrow, uniforms, draw_on_host)),
    ]
    return sum(g != e for got, expected in pairs for g, e in zip(got, expected, strict=True))


def _each(logits: torch.Tensor, wanted: Any, uniforms: torch.Tensor, choose: Any) -> list[int]:
    return [choose(row, wanted, u) for row, u in zip(logits.numpy(), uniforms.tolist(), strict=True)]


def _product_error(kind: str, group: int, tokens: int, device: torch.device, int8_inputs: bool = False) -> float:
    """Relative to the largest result; bf16 inputs."""
    matrix = random_matrix(1024, 2048, kind, group, device)
    x = torch.randn(tokens, 2048, device=device).bfloat16()
    args = (matrix.codes, matrix.scale, matrix.offset, matrix.kind)
    weights = _plain(*args).dequantize()
    if int8_inputs:
        codes, scale = quantize_tokens(x)
        got = ops.int8_linear(codes, scale, *args, None, torch.bfloat16)
        expected = (codes.float() * scale) @ weights.T
    else:
        got = ops.quantized_linear(x, *args, "float", None)
        expected = x.float() @ weights.T
    return float((got.float() - expected).abs().max() / expected.abs().max())


def _tokens_that_differ(spec: ModelSpec, device: torch.device, compiled: bool) -> int:
    """Greedy tokens of three prompts, against the plain decoder run whole on each known text."""
    made = compiled_small if compiled else paged_small
    runner = made(spec, device)
    groups = group_layers([spec.window(layer) for layer in range(spec.num_layers)])
    requests = [make_request(n, 6, len(groups), first_block=20 * i, seed=i) for i, n in enumerate((17, 1, 30))]
    wrong = 0
    work = [(request, 0, len(request.token_ids)) for request in requests]
    for _ in range(5):
        chosen = runner.execute(make_plan(work))
        for request, token in zip(requests, chosen.token_ids, strict=True):
            wrong += token != _reference_token(spec, request.token_ids)
            request.token_ids.append(token)
        work = [(request, len(request.token_ids) - 1, 1) for request in requests]
    return wrong


def _reference_token(spec: ModelSpec, tokens: list[int]) -> int:
    count = len(tokens)
    one_group = (LayerGroup(tuple(range(spec.num_layers)), None),)
    decoder = Decoder(spec, one_group, RandomCheckpoint(spec), torch.float32)
    caches = [torch.zeros(2, 1, spec.num_kv_heads, 128, spec.head_dim) for _ in range(spec.num_layers)]
    group = GroupTensors(torch.zeros(1, 1, dtype=torch.int32), torch.arange(count))
    ints = torch.arange(count, dtype=torch.int32)
    ends = torch.tensor([0, count], dtype=torch.int32)
    step = StepTensors(
        torch.tensor(tokens, dtype=torch.int32), ints, ends, ends[1:], [group], torch.tensor([count - 1])
    )
    return int(decoder.logits(decoder.forward(step, caches)[-1:]).argmax())


def run_checks(device: torch.device, only: int | None = None) -> list[Check]:
    """All of them; in a dry run, the first `only`."""
    torch.manual_seed(0)
    done = []
    for name, allowed, measure in islice(checks(device), only):
        begin = time.perf_counter()
        try:
            error = measure()
        except Exception as problem:
            # A kernel that doesn't compile must not hide what the others do.
            print(f"{name}: {type(problem).__name__}: {problem}", file=sys.stderr)
            error = float("inf")
        done.append(Check(name, error, allowed, time.perf_counter() - begin))
        mark = "ok  " if done[-1].passes else "FAIL"
        print(f"{mark} {name:42} error {error:9.2e}  allowed {allowed:7.0e}  {done[-1].seconds:5.1f} s", flush=True)
    return done
