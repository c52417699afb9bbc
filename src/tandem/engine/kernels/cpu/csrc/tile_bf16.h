// The tile with AVX-512's vdpbf16ps: pairs of bf16, two products an instruction and lane.
#pragma once
#include "tile.h"

namespace tandem {
namespace TANDEM_VARIANT {

static inline __m512bh pair(const bf16* p) {
  int32_t both;
  __builtin_memcpy(&both, p, sizeof both);
  return (__m512bh)_mm512_set1_epi32(both);
}

template <int R>
static void bf16_tile(const bf16* a, int64_t lda, const BTile& b, float* c, int64_t ldc, bool add) {
  __m512 acc[R][2];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    acc[r][0] = add ? _mm512_loadu_ps(c + r * ldc) : _mm512_setzero_ps();
    acc[r][1] = add ? _mm512_loadu_ps(c + r * ldc + kHalf) : _mm512_setzero_ps();
  }
  // Rows are addressed from three bases, at 0, 1, 2 and 3 times the stride: twelve pointers wouldn't fit the registers.
  const bf16* base[3] = {a, a + 4 * lda, a + 8 * lda};
  const int64_t lda3 = 3 * lda;
  const char* ahead = b.ahead;
  for (int s = 0; s < b.num_segments; ++s) {
    const char* p = b.segments[s];
    for (int i = 0; i < b.steps; ++i, p += b.step_bytes) {
      prefetch_l2(ahead);
      ahead += b.ahead_step;
      const __m512bh b0 = (__m512bh)_mm512_loadu_si512(p);
      const __m512bh b1 = (__m512bh)_mm512_loadu_si512(p + b.second);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const __m512bh row = pair(base[r / 4] + (r % 4 == 3 ? lda3 : (r % 4) * lda));
        acc[r][0] = _mm512_dpbf16_ps(acc[r][0], row, b0);
        acc[r][1] = _mm512_dpbf16_ps(acc[r][1], row, b1);
      }
#pragma GCC unroll 3
      for (int t = 0; t < (R + 3) / 4; ++t) base[t] += 2;
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    _mm512_storeu_ps(c + r * ldc, acc[r][0]);
    _mm512_storeu_ps(c + r * ldc + kHalf, acc[r][1]);
  }
}

struct DotProduct {
  using A = bf16;
  static constexpr int kRows = 12;
  template <int R> static TileFunction<A> pick(int rows) {
    if constexpr (R == 1) return bf16_tile<1>;
    else return rows == R ? bf16_tile<R> : pick<R - 1>(rows);
  }
  static TileFunction<A> tile(int rows) { return pick<kRows>(rows); }
};

}  // namespace TANDEM_VARIANT
}  // namespace tandem
