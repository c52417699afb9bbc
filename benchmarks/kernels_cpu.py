"""How near the native CPU decoder comes to the machine's floors, on SmolLM2-135M's shape with random weights.

    python benchmarks/kernels_cpu.py [--threads 2] [--weights w8a8] [--kv bfloat16] [--variant avx512_bf16]

Floors: for products the slower of weights over read bandwidth and operations over the dot instruction's peak; for
attention the same with the KV, which lies in chunks anywhere. Bandwidth and peak are measured in the same run; figures
are medians and bests. Run it alone: on shared cores bandwidth alone varies twofold.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from tandem.engine.kernels.cpu.build import find_compiler
from tandem.engine.kernels.cpu.decoder import CpuDecoder
from tandem.engine.kernels.cpu.native import Kernels, load_kernels
from tandem.engine.kernels.cpu.weights import DecoderWeights, ImageEntry, LayerWeights, pack_image
from tandem.engine.models.spec import ModelSpec
from tandem.engine.quantization.matrix import Activations, QuantizedMatrix

SMOLLM2 = ModelSpec(
    family="llama",
    num_layers=30,
    hidden_size=576,
    intermediate_size=1536,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    vocab_size=49152,
    max_position=8192,
    rms_norm_eps=1e-5,
    rope_theta=100000.0,
    tie_embeddings=True,
)

FLOORS = r"""
#include <immintrin.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
struct part { const char* from; size_t chunks, chunk; int repeats; long long sum; };
typedef long long v8 __attribute__((vector_size(64)));
static void* read_part(void* p) {
  struct part* a = p; v8 s[4] = {{0}};
  for (int r = 0; r < a->repeats; ++r)
    for (size_t c = 0; c < a->chunks; ++c) {
      const char* from = a->from + c * 2654435761u % a->chunks * a->chunk;  /* hops about; one chunk: front to back */
      for (size_t i = 0; i + 256 <= a->chunk; i += 256)
        for (int j = 0; j < 4; ++j) s[j] += *(const v8*)(from + i + 64 * j);
    }
  a->sum = (s[0] + s[1] + s[2] + s[3])[0];
  return 0;
}
double read_gb_s(size_t bytes, size_t chunk, int threads) {
  char* m = mmap(0, bytes + (4 << 20), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  char* b = (char*)(((size_t)m + (2 << 20) - 1) & ~(size_t)((2 << 20) - 1));
  madvise(b, bytes, MADV_HUGEPAGE);
  for (size_t i = 0; i < bytes; i += 64) b[i] = i;
  double best = 0;
  for (int try = 0; try < 5; ++try) {
    struct part parts[threads]; pthread_t ids[threads];
    double t = now();
    for (int i = 0; i < threads; ++i) {
      size_t each = bytes / threads / 4096 * 4096, one = chunk ? chunk : each;
      parts[i] = (struct part){b + each * i, each / one, one, 4, 0};
      pthread_create(&ids[i], 0, read_part, &parts[i]);
    }
    for (int i = 0; i < threads; ++i) pthread_join(ids[i], 0);
    t = 4.0 * bytes / (now() - t) / 1e9;
    if (t > best) best = t;
  }
  munmap(m, bytes + (4 << 20));
  return best;
}
#if defined(WHOLE) && defined(__AVX512VNNI__)
#define OP "vpdpbusd"
#define FLOPS 128
#elif defined(__AVX512BF16__)
#define OP "vdpbf16ps"
#define FLOPS 64
#elif defined(__AVX512F__)
#define OP "vfmadd231ps"
#define FLOPS 32
#endif
#ifdef OP
#define ONE(i) OP " %%zmm30,%%zmm31,%%zmm" #i "\n"
static void* multiply(void* p) {
  (void)p; long n = 4000000;
  asm volatile("vpxorq %%zmm30,%%zmm30,%%zmm30\nvpxorq %%zmm31,%%zmm31,%%zmm31\n1:\n" ONE(0) ONE(1) ONE(2) ONE(3)
    ONE(4) ONE(5) ONE(6) ONE(7) ONE(8) ONE(9) ONE(10) ONE(11) ONE(12) ONE(13) ONE(14) ONE(15) ONE(16) ONE(17) ONE(18)
    ONE(19) "dec %0\njnz 1b\n"
    : "+r"(n) : : "cc", "memory");
  return 0;
}
double peak_tflops(int threads) {
  double best = 0;
  for (int try = 0; try < 5; ++try) {
    pthread_t ids[threads]; double t = now();
    for (int i = 0; i < threads; ++i) pthread_create(&ids[i], 0, multiply, 0);
    for (int i = 0; i < threads; ++i) pthread_join(ids[i], 0);
    t = threads * 4e6 * 20 * FLOPS / (now() - t) / 1e12;
    if (t > best) best = t;
  }
  return best;
}
#else
double peak_tflops(int threads) { (void)threads; return 0; }
#endif
"""


class Floors:
    """Reads and multiplies (in whole numbers, or bf16) as fast as the machine can; compiled with -march=native."""

    def __init__(self, threads: int, whole: bool = False) -> None:
        compiler = find_compiler()
        assert compiler is not None, "no compiler"
        with tempfile.TemporaryDirectory() as work:
            source, library = Path(work) / "floors.c", Path(work) / "floors.so"
            source.write_text(FLOORS)
            command = [
                *compiler.command,
                "-x",
                "c",
                "-std=gnu11",
                "-O3",
                "-march=native",
                "-shared",
                "-fPIC",
                "-pthread",
                *(["-DWHOLE"] if whole else []),
            ]
            subprocess.run([*command, str(source), "-o", str(library)], check=True)
            self._library = ctypes.CDLL(str(library))
        self._library.read_gb_s.restype = self._library.peak_tflops.restype = ctypes.c_double
        self._threads = threads
        self.peak_tflops: float = self._library.peak_tflops(threads)

    def read_gb_s(self, size_bytes: int, chunk_bytes: int = 0) -> float:
        """Reading so much front to back, or in chunks that lie anywhere."""
        result: float = self._library.read_gb_s(
            ctypes.c_size_t(size_bytes), ctypes.c_size_t(chunk_bytes), self._threads
        )
        return result


class Batch(NamedTuple):
    name: str
    sequences: int
    queries: int
    context: int
    """Including this step's queries."""


BATCHES = (
    Batch("single stream", 1, 1, 192),
    Batch("single stream, long", 1, 1, 4096),
    Batch("decode 16", 16, 1, 400),
    Batch("decode 64", 64, 1, 400),
    Batch("prefill 128", 1, 128, 128),
    Batch("prefill 512", 1, 512, 512),
    Batch("prefill 1024", 1, 1024, 1024),
)


def random_weights(name: str, dtype: torch.dtype) -> torch.Tensor:
    s = SMOLLM2
    heads, kv = s.num_heads * s.head_dim, s.num_kv_heads * s.head_dim
    rows = {"embed_tokens": s.vocab_size, "q_proj": heads, "k_proj": kv, "v_proj": kv, "gate_proj": s.intermediate_size}
    rows |= {"up_proj": s.intermediate_size, "o_proj": s.hidden_size, "down_proj": s.hidden_size}
    kind = name.split(".")[-2]
    if "norm" in kind:
        return torch.ones(s.hidden_size)
    columns = {"o_proj": heads, "down_proj": s.intermediate_size}.get(kind, s.hidden_size)
    return torch.randn(rows[kind], columns, dtype=torch.float32).mul_(0.04).to(dtype)


KINDS: dict[str, tuple[Literal["int8", "int4"], int, bool, Activations]] = {
    "w8a8": ("int8", 0, True, "int8_token"),
    "int8": ("int8", 32, True, "int8_group"),
    "int4": ("int4", 32, True, "int8_group"),
    "int4-offset": ("int4", 32, False, "int8_group"),
}
"""Kind, group (0: a row), symmetric, what inputs are rounded to."""


def random_image(kernels: Kernels, weights: str) -> tuple[torch.Tensor, list[ImageEntry]]:
    kind, group, symmetric, activations = KINDS[weights]
    s, steps = SMOLLM2, 16 if kind == "int4" else 256

    def matrix(rows: int, inputs: int) -> QuantizedMatrix:
        codes = torch.randint(0, steps, (rows, inputs), dtype=torch.uint8)
        scale = torch.full((rows, inputs // (group or inputs)), 1 / 8 / steps)
        return QuantizedMatrix(codes, scale, None if symmetric else scale * (steps // -2), kind, activations)

    h, heads, norm = s.hidden_size, s.num_heads * s.head_dim, torch.ones(s.hidden_size)
    layers = [
        LayerWeights(
            norm,
            norm,
            matrix(heads + 2 * s.num_kv_heads * s.head_dim, h),
            matrix(h, heads),
            matrix(2 * s.intermediate_size, h),
            matrix(h, s.intermediate_size),
        )
        for _ in range(s.num_layers)
    ]
    return pack_image(s, DecoderWeights(layers, matrix(s.vocab_size, h), None, norm), kernels)


def step_of(decoder: CpuDecoder, batch: Batch) -> Callable[[], None]:
    size, blocks = decoder.block_size, -(-batch.context // decoder.block_size)
    table = torch.randperm(decoder.num_blocks, dtype=torch.int32)[: batch.sequences * blocks].reshape(
        batch.sequences, blocks
    )
    positions = torch.arange(batch.context - batch.queries, batch.context, dtype=torch.int32).repeat(batch.sequences)
    slots = (
        (table[:, positions[: batch.queries].long() // size] * size + positions[: batch.queries] % size)
        .reshape(-1)
        .contiguous()
    )
    starts = torch.arange(0, batch.sequences * batch.queries + 1, batch.queries, dtype=torch.int32)
    contexts = torch.full((batch.sequences,), batch.context, dtype=torch.int32)
    ids = torch.randint(0, SMOLLM2.vocab_size, positions.shape, dtype=torch.int32)
    rows, out = starts[1:] - 1, torch.empty(batch.sequences, dtype=torch.int32)
    return lambda: decoder.step(ids, positions, starts, contexts, [table], [slots], rows, argmax_out=out)


def fill(decoder: CpuDecoder) -> None:
    """Writes every block once: memory that was never written reads as one page of zeros, which lies in the cache."""
    size, per_step = decoder.block_size, decoder.max_tokens // decoder.block_size
    for first in range(0, decoder.num_blocks, per_step):
        blocks = torch.arange(first, min(first + per_step, decoder.num_blocks), dtype=torch.int32)
        slots = torch.arange(first * size, first * size + len(blocks) * size, dtype=torch.int32)
        starts = torch.arange(0, len(slots) + 1, size, dtype=torch.int32)
        contexts, ids = torch.full((len(blocks),), size, dtype=torch.int32), slots % SMOLLM2.vocab_size
        none = torch.empty(0, dtype=torch.int32)
        decoder.step(
            ids, slots % size, starts, contexts, [blocks[:, None].contiguous()], [slots], none, argmax_out=none
        )


class Work(NamedTuple):
    """What a step can't do without: bytes to read, operations to do."""

    weight_bytes: int
    kv_bytes: int
    product_flops: float
    attention_flops: float


def work_of(batch: Batch, weight_bytes: int, element_bytes: int) -> Work:
    s = SMOLLM2
    tokens = batch.sequences * batch.queries
    kv = batch.sequences * batch.context * s.kv_bytes_per_token(element_bytes)
    head = s.vocab_size * s.hidden_size
    products = 2.0 * ((s.num_parameters - head) * tokens + head * batch.sequences)
    mean_context = batch.context - (batch.queries - 1) / 2
    attention = 4.0 * s.num_layers * s.num_heads * s.head_dim * tokens * mean_context
    return Work(weight_bytes, kv, products, attention)


def measure(step: Callable[[], None], seconds: float) -> list[float]:
    step()
    times: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(times) < 5:
        started = time.perf_counter()
        step()
        times.append(time.perf_counter() - started)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--weights", choices=("bfloat16", "float32", *KINDS), default="bfloat16")
    parser.add_argument("--kv", choices=("bfloat16", "float32", "int8"), default="bfloat16")
    parser.add_argument("--variant", default=None)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each figure")
    parser.add_argument("--only", default="", help="batches whose name contains this")
    options = parser.parse_args()
    kernels, reason = load_kernels()
    print(reason)
    if kernels is None:
        return
    tensors: dict[str, torch.Tensor] = {}

    def read(name: str, dtype: torch.dtype) -> torch.Tensor:
        if name not in tensors:
            tensors[name] = random_weights(name, dtype)
        return tensors[name]

    settings: dict[str, Any] = {
        "kernels": kernels,
        "kv_dtype": options.kv,
        "threads": options.threads,
        "variant": options.variant,
    }
    if options.weights in KINDS:
        image, entries = random_image(kernels, options.weights)
        started = time.perf_counter()
        decoder = CpuDecoder.from_image(SMOLLM2, image, entries, num_blocks=1664, max_tokens=1024, **settings)
    else:
        settings["weight_dtype"] = options.weights
        CpuDecoder(SMOLLM2, read, num_blocks=8, max_tokens=8, **settings).close()  # reading isn't in the figure
        started = time.perf_counter()
        decoder = CpuDecoder(SMOLLM2, read, num_blocks=1664, max_tokens=1024, **settings)
    seconds = time.perf_counter() - started
    print(
        f"{decoder.variant}, {options.threads} threads; packed {decoder.weight_bytes / 1e6:.0f} MB in {seconds:.2f} s"
    )
    fill(decoder)
    floors = Floors(options.threads, options.weights in KINDS)
    gb_s = floors.read_gb_s(decoder.weight_bytes)
    chunk = decoder.block_bytes // SMOLLM2.num_layers // SMOLLM2.num_kv_heads // 256 * 256
    kv_gb_s = floors.read_gb_s(512 << 20, chunk)
    print(
        f"floors: {gb_s:.1f} GB/s at the size of the weights, {kv_gb_s:.1f} in chunks of {chunk} bytes "
        f"(a block's KV head), {floors.peak_tflops:.2f} TFLOP/s in registers\n"
    )
    head = ("median ms", "best ms", "tokens/s", "products ms", "attention ms", "of the floor")
    print(" " * 22 + "{:>10}{:>9}{:>10}{:>13}{:>14}{:>13}".format(*head))
    element_bytes = {"bfloat16": 2, "float32": 4, "int8": 1}[options.kv]
    for batch in BATCHES:
        if options.only not in batch.name:
            continue
        times = measure(step_of(decoder, batch), options.seconds)
        median = statistics.median(times)
        work = work_of(batch, decoder.weight_bytes, element_bytes)
        flops = floors.peak_tflops * 1e12 or float("inf")
        # Each part is bound by the slower of its bytes and its operations; the parts follow one another.
        products = max(work.weight_bytes / gb_s / 1e9, work.product_flops / flops)
        attention = max(work.kv_bytes / kv_gb_s / 1e9, work.attention_flops / flops)
        floor = products + attention
        rate = batch.sequences * batch.queries / median
        print(
            f"{batch.name:22}{median * 1e3:10.2f}{min(times) * 1e3:9.2f}{rate:10.0f}"
            f"{products * 1e3:13.2f}{attention * 1e3:14.2f}{floor / median:12.0%} ({floor / min(times):.0%} at best)"
        )


if __name__ == "__main__":
    main()
