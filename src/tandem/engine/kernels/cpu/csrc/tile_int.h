// Tiles of integer products: unsigned codes of weights times signed codes of inputs, exact sums in 32 bits, scales behind them.
//
// Where a matrix is symmetric, a sum starts at -128 (or -8) times the sum of the inputs' codes, so that it comes out as if codes
// were signed. Where it has offsets, the inputs' sum in floats is multiplied with the offset instead.
#pragma once
#include "decoder.h"
#include "tile.h"

namespace tandem {
namespace TANDEM_VARIANT {

// How a product walks a panel, and what it asks for from memory meanwhile: `ahead_step` bytes more at every 128 bytes of codes.
struct PanelWalk {
  const char* data;
  const char* ahead;
  int64_t ahead_step;
};

#ifdef __AVX512F__
constexpr int kChannelRows = 12, kGroupedRows = 6;   // 24 sums of 32 registers; 12 in whole numbers and 12 in floats
#else
constexpr int kChannelRows = 3, kGroupedRows = 1;
#endif

static inline V load_scales(const char* header, bool wide, int at) {
  return wide ? load(reinterpret_cast<const float*>(header) + at) : load_half(reinterpret_cast<const uint16_t*>(header) + at);
}
static inline I splat_bytes(const int8_t* p) {
  int32_t four;
  __builtin_memcpy(&four, p, sizeof four);
  return splat_int(four);
}
TANDEM_INLINE int64_t row_offset(int r, int64_t stride, int64_t stride3) { return r % 4 == 3 ? stride3 : (r % 4) * stride; }

// One scale a row of weights, one scale a row of inputs.
template <int R> static void channel_tile(const Inputs& in, int row, const Matrix& w, PanelWalk walk, float* c) {
  constexpr int N = kPanel / W;
  const int8_t* a = static_cast<const int8_t*>(in.rows) + row * in.stride;
  const bool offset = w.form.flags & kOffset, wide = w.form.flags & kWideScales;
  I acc[R][N];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) acc[r][j] = splat_int(offset ? 0 : in.start[row + r].whole);
  const int64_t stride = in.stride, stride3 = 3 * in.stride;
  const int8_t* base[3] = {a, a + 4 * stride, a + 8 * stride};
  const char* p = walk.data + header_bytes(w.form);
  for (const char* end = walk.data + w.panel_bytes; p < end; p += kPanel * 4) {
    prefetch_l2(walk.ahead);
    walk.ahead += walk.ahead_step;
    I columns[N];
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) columns[j] = load_ints(p + j * W * 4);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const I x = splat_bytes(base[r / 4] + row_offset(r, stride, stride3));
#pragma GCC unroll 4
      for (int j = 0; j < N; ++j) acc[r][j] = dot(acc[r][j], columns[j], x);
    }
#pragma GCC unroll 3
    for (int t = 0; t < (R + 3) / 4; ++t) base[t] += 4;
  }
#pragma GCC unroll 4
  for (int j = 0; j < N; ++j) {
    const V scale = load_scales(walk.data, wide, j * W), zero = offset ? load_scales(walk.data, wide, kPanel + j * W) : scale;
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      V y = to_floats(acc[r][j]) * (scale * splat(in.scale[row + r]));
      if (offset) y = fma(zero, splat(in.start[row + r].sum), y);
      store(c + r * kPanel + j * W, y);
    }
  }
}

// Scales by group of weights, scales of inputs by thirty-two of them.
template <int R, int Bits, bool Offset> static void grouped_tile(const Inputs& in, int row, const Matrix& w, PanelWalk walk, float* c) {
  constexpr int N = kPanel / W;
  constexpr int kStep = kPanel * 4;  // bytes: four values of each column, or eight nibbles
  const int8_t* a = static_cast<const int8_t*>(in.rows) + row * in.stride;
  const int64_t stride = in.stride;
  const bool wide = w.form.flags & kWideScales;
  const int64_t header_size = header_bytes(w.form);
  const int parts = (w.form.group ? w.form.group : w.k) / kRoundGroup;
  const float* scales = in.scale + row * in.groups;
  const Start* starts = in.start + row * in.groups;
  V total[R][N];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) total[r][j] = zero();
  const char* p = walk.data;
  for (const char* end = p + w.panel_bytes; p < end;) {
    const char* header = p;
    p += header_size;
    for (int part = 0; part < parts; ++part) {
      I acc[R][N];
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int j = 0; j < N; ++j) acc[r][j] = splat_int(Offset ? 0 : starts[r * in.groups].whole);
#pragma GCC unroll 8
      for (int s = 0; s < kRoundGroup / (Bits == 4 ? 8 : 4); ++s, p += kStep) {
        prefetch_l2(walk.ahead);
        walk.ahead += walk.ahead_step;
        if constexpr (Bits == 4) {
          I low[N], high[N];
#pragma GCC unroll 4
          for (int j = 0; j < N; ++j) {
            const I both = load_ints(p + j * W * 4);
            low[j] = low_nibbles(both);
            high[j] = high_nibbles(both);
          }
#pragma GCC unroll 6
          for (int r = 0; r < R; ++r) {
            const I x = splat_bytes(a + r * stride + 8 * s), y = splat_bytes(a + r * stride + 8 * s + 4);
#pragma GCC unroll 4
            for (int j = 0; j < N; ++j) acc[r][j] = dot(dot(acc[r][j], low[j], x), high[j], y);
          }
        } else {
          I columns[N];
#pragma GCC unroll 4
          for (int j = 0; j < N; ++j) columns[j] = load_ints(p + j * W * 4);
#pragma GCC unroll 6
          for (int r = 0; r < R; ++r) {
            const I x = splat_bytes(a + r * stride + 4 * s);
#pragma GCC unroll 4
            for (int j = 0; j < N; ++j) acc[r][j] = dot(acc[r][j], columns[j], x);
          }
        }
      }
#pragma GCC unroll 4
      for (int j = 0; j < N; ++j) {
        const V scale = load_scales(header, wide, j * W);
        const V zero_of = Offset ? load_scales(header, wide, kPanel + j * W) : scale;
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r) {
          total[r][j] = fma(to_floats(acc[r][j]), scale * splat(scales[r * in.groups]), total[r][j]);
          if (Offset) total[r][j] = fma(zero_of, splat(starts[r * in.groups].sum), total[r][j]);
        }
      }
      a += kRoundGroup;
      ++scales;
      ++starts;
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) store(c + r * kPanel + j * W, total[r][j]);
}

// Rows of 16-bit whole numbers with keys or values of int8, as a BTile of pairs; sums in whole numbers, given as floats.
template <int R> static void pair_tile(const int16_t* a, int64_t lda, const BTile& b, float* c, int64_t ldc, bool) {
  constexpr int N = kPanel / W;
  I acc[R][N];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) acc[r][j] = splat_int(0);
  const int16_t* base[3] = {a, a + 4 * lda, a + 8 * lda};
  const int64_t lda3 = 3 * lda;
  for (int s = 0; s < b.num_segments; ++s) {
    const char* p = b.segments[s];
    for (int i = 0; i < b.steps; ++i, p += b.step_bytes) {
      I columns[N];
#pragma GCC unroll 4
      for (int j = 0; j < N; ++j) columns[j] = load_pairs(reinterpret_cast<const int8_t*>(p + (j * W < kHalf ? j * W * 2 : b.second + (j * W - kHalf) * 2)));
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const I x = splat_bytes(reinterpret_cast<const int8_t*>(base[r / 4] + row_offset(r, lda, lda3)));
#pragma GCC unroll 4
        for (int j = 0; j < N; ++j) acc[r][j] = dot_pairs(acc[r][j], columns[j], x);
      }
#pragma GCC unroll 3
      for (int t = 0; t < (R + 3) / 4; ++t) base[t] += 2;
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) store(c + r * ldc + j * W, to_floats(acc[r][j]));
}

// The same for the few rows of a decode and 64 columns in four registers that lie anywhere: enough sums under way to keep the
// multipliers busy. `ahead`, or null: memory that is wanted soon, 1 KiB at every eight steps.
template <int R> static void wide_pair_tile(const int16_t* a, int64_t lda, const BTile& b, const int64_t* column_at, const char* const* ahead, float* c, int64_t ldc) {
  constexpr int N = 64 / W;
  I acc[R][N];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) acc[r][j] = splat_int(0);
  for (int s = 0, done = 0; s < b.num_segments; ++s) {
    const char* p = b.segments[s];
    for (int i = 0; i < b.steps; ++i, p += b.step_bytes, a += 2, ++done) {
      if (ahead) {
        const char* q = ahead[done / 8] + done % 8 * 128;
        prefetch_l2(q);
        prefetch_l2(q + 64);
      }
      I x[R];
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) x[r] = splat_bytes(reinterpret_cast<const int8_t*>(a + r * lda));
#pragma GCC unroll 8
      for (int j = 0; j < N; ++j) {
        const I column = load_pairs(reinterpret_cast<const int8_t*>(p + column_at[j * W / kHalf] + j * W % kHalf * 2));
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) acc[r][j] = dot_pairs(acc[r][j], column, x[r]);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) store(c + r * ldc + j * W, to_floats(acc[r][j]));
}
static inline void wide_pairs(int rows, const int16_t* a, int64_t lda, const BTile& b, const int64_t* column_at, const char* const* ahead, float* c, int64_t ldc) {
  if (rows == 1) return wide_pair_tile<1>(a, lda, b, column_at, ahead, c, ldc);
  if (rows == 2) return wide_pair_tile<2>(a, lda, b, column_at, ahead, c, ldc);
  if (rows == 3) return wide_pair_tile<3>(a, lda, b, column_at, ahead, c, ldc);
  wide_pair_tile<4>(a, lda, b, column_at, ahead, c, ldc);
}
static inline void wide_pairs(int, const float*, int64_t, const BTile&, const int64_t*, const char* const*, float*, int64_t) {}
static inline void wide_pairs(int, const bf16*, int64_t, const BTile&, const int64_t*, const char* const*, float*, int64_t) {}

struct PairProduct {
  using A = int16_t;
  static constexpr int kRows = kChannelRows;
  template <int R> static TileFunction<A> pick(int rows) {
    if constexpr (R == 1) return pair_tile<1>;
    else return rows == R ? pair_tile<R> : pick<R - 1>(rows);
  }
  static TileFunction<A> tile(int rows) { return pick<kRows>(rows); }
};

using IntTile = void (*)(const Inputs& in, int row, const Matrix& w, PanelWalk walk, float* c);

template <int R> static IntTile pick_channel(int rows) {
  if constexpr (R == 1) return channel_tile<1>;
  else return rows == R ? channel_tile<R> : pick_channel<R - 1>(rows);
}
template <int R> static IntTile pick_grouped(int rows, const Form& f) {
  if constexpr (R > 1)
    if (rows < R) return pick_grouped<R - 1>(rows, f);
  const bool offset = f.flags & kOffset;
  if (f.kind == Kind::int4) return offset ? grouped_tile<R, 4, true> : grouped_tile<R, 4, false>;
  return offset ? grouped_tile<R, 8, true> : grouped_tile<R, 8, false>;
}

}  // namespace TANDEM_VARIANT
}  // namespace tandem
