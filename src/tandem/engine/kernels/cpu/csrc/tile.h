// The one product that everything is made of: C[rows][32] (+)= A[rows][k] · B[k][32], for a few rows.
//
// B is what a panel of weights is, and what keys and values of the KV pool are. It comes in segments (the KV pool's groups of
// positions; weights are one segment) of `steps` steps of Packing<B>::k values each; in a step, columns 0-15 lie together and
// columns 16-31 `second` bytes behind. Each output is one chain of additions in the order of k, whatever the rows beside it:
// so a row's result does not depend on the batch it came in.
#pragma once
#include "common.h"

namespace tandem {
namespace TANDEM_VARIANT {

struct BTile {
  const char* const* segments;
  int num_segments;
  int steps;
  int64_t step_bytes;
  int64_t second;
  const char* ahead;       // asked for from memory meanwhile, into the second-level cache: `ahead_step` bytes more at every step
  int64_t ahead_step;
};

template <class A> using TileFunction = void (*)(const A* a, int64_t lda, const BTile& b, float* c, int64_t ldc, bool add);

#ifndef TANDEM_FMA_ROWS
#if defined(__AVX512F__)
#define TANDEM_FMA_ROWS 12   // 24 accumulators of the 32 registers
#else
#define TANDEM_FMA_ROWS 3    // 12 of the 16
#endif
#endif

// Float inputs; weights float, or bf16 widened on the way. All loops over rows and columns must unroll: the sums live in registers.
template <class B, int R>
static void fma_tile(const float* a, int64_t lda, const BTile& b, float* c, int64_t ldc, bool add) {
  constexpr int N = kPanel / W;
  V acc[R][N];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) acc[r][j] = add ? load(c + r * ldc + j * W) : zero();
  // Rows are addressed from three bases, at 0, 1, 2 and 3 times the stride: twelve pointers wouldn't fit the registers.
  const float* base[3] = {a, a + 4 * lda, a + 8 * lda};
  const int64_t lda3 = 3 * lda;
  const char* ahead = b.ahead;
  for (int s = 0; s < b.num_segments; ++s) {
    const char* p = b.segments[s];
    for (int i = 0; i < b.steps; ++i, p += b.step_bytes) {
      prefetch_l2(ahead);
      ahead += b.ahead_step;
#pragma GCC unroll 2
      for (int k = 0; k < Packing<B>::k; ++k) {
        auto column = [&](int j) __attribute__((always_inline)) {
          constexpr int bytes = sizeof(B) == 1 ? 1 : 4;  // of a column in a step
          const char* q = p + (j * W < kHalf ? j * W * bytes : b.second + (j * W - kHalf) * bytes);
          if constexpr (Packing<B>::k == 1) return load(reinterpret_cast<const B*>(q));
          else return k == 0 ? first_of_pairs(q) : second_of_pairs(q);
        };
        auto row = [&](int r) __attribute__((always_inline)) { return splat(base[r / 4][k + (r % 4 == 3 ? lda3 : (r % 4) * lda)]); };
        // The fewer of the two stay in registers: with sixteen of them, all columns beside twelve sums would not fit.
        if constexpr (R < N) {
          V rows[R];
#pragma GCC unroll 4
          for (int r = 0; r < R; ++r) rows[r] = row(r);
#pragma GCC unroll 4
          for (int j = 0; j < N; ++j) {
            const V c_j = column(j);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) acc[r][j] = fma(rows[r], c_j, acc[r][j]);
          }
        } else {
          V columns[N];
#pragma GCC unroll 4
          for (int j = 0; j < N; ++j) columns[j] = column(j);
#pragma GCC unroll 12
          for (int r = 0; r < R; ++r) {
            const V a_r = row(r);
#pragma GCC unroll 4
            for (int j = 0; j < N; ++j) acc[r][j] = fma(a_r, columns[j], acc[r][j]);
          }
        }
      }
#pragma GCC unroll 3
      for (int t = 0; t < (R + 3) / 4; ++t) base[t] += Packing<B>::k;
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) store(c + r * ldc + j * W, acc[r][j]);
}

// For each kind of product: its input type, how many rows a tile has at most, and the function for a number of rows.
template <class B> struct FmaProduct {
  using A = float;
  static constexpr int kRows = TANDEM_FMA_ROWS;
  template <int R> static TileFunction<A> pick(int rows) {
    if constexpr (R == 1) return fma_tile<B, 1>;
    else return rows == R ? fma_tile<B, R> : pick<R - 1>(rows);
  }
  static TileFunction<A> tile(int rows) { return pick<kRows>(rows); }
};

}  // namespace TANDEM_VARIANT
}  // namespace tandem
