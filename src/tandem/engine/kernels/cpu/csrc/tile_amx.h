// The tile with AMX: 16 x 16 outputs an instruction, 32 values of k deep; here two by two of them.
//
// Tiles 0-3 hold C, 4 and 5 the rows, 6 and 7 the columns; all are 16 rows of 64 bytes, configured once a step by each thread.
// Rows beyond those asked for are computed from whatever lies there and not looked at: buffers of inputs have 32 rows to spare.
#pragma once
#ifdef TANDEM_EMULATE_AMX
#include "amx_emulated.h"
#else
#include <immintrin.h>
#endif

#include "decoder.h"
#include "tile.h"
#include "tile_int.h"

namespace tandem {
namespace TANDEM_VARIANT {

struct alignas(64) TileConfig {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};

static void enter_tiles() {
  TileConfig config;
  __builtin_memset(&config, 0, sizeof config);
  config.palette = 1;
  for (int i = 0; i < 8; ++i) {
    config.row_bytes[i] = 64;
    config.rows[i] = 16;
  }
  // gcc 12 doesn't know that the instruction reads memory, and drops the stores above unless told.
  asm volatile("" ::: "memory");
  _tile_loadconfig(&config);
}

static void leave_tiles() { _tile_release(); }

// Two row tiles (17 to 32 rows) or one.
template <bool Two>
static void amx_tile(const bf16* a, int64_t lda, const BTile& b, float* c, int64_t ldc, bool add) {
  const int64_t a_bytes = lda * 2, c_bytes = ldc * 4;
  if (add) {
    _tile_loadd(0, c, c_bytes);
    _tile_loadd(1, c + kHalf, c_bytes);
    if (Two) {
      _tile_loadd(2, c + 16 * ldc, c_bytes);
      _tile_loadd(3, c + 16 * ldc + kHalf, c_bytes);
    }
  } else {
    _tile_zero(0);
    _tile_zero(1);
    if (Two) {
      _tile_zero(2);
      _tile_zero(3);
    }
  }
  const char* ahead = b.ahead;
  for (int s = 0; s < b.num_segments; ++s) {
    const char* p = b.segments[s];
    for (int i = 0; i < b.steps; i += 16, p += 16 * b.step_bytes, a += 32) {
      for (int j = 0; j < 16; ++j, ahead += b.ahead_step) prefetch_l2(ahead);
      _tile_loadd(6, p, b.step_bytes);
      _tile_loadd(4, a, a_bytes);
      _tile_loadd(7, p + b.second, b.step_bytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      if (Two) {
        _tile_loadd(5, a + 16 * lda, a_bytes);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
  }
  _tile_stored(0, c, c_bytes);
  _tile_stored(1, c + kHalf, c_bytes);
  if (Two) {
    _tile_stored(2, c + 16 * ldc, c_bytes);
    _tile_stored(3, c + 16 * ldc + kHalf, c_bytes);
  }
  asm volatile("" ::: "memory");  // the stores above are memory that the compiler believes unwritten
}

// Integers: inputs signed, weights unsigned, sums exact; 64 values of k an instruction.
template <bool Two> static void amx_int_tile(const int8_t* a, int64_t lda, int k, const char* p, PanelWalk walk, int32_t* c) {
  _tile_zero(0);
  _tile_zero(1);
  if (Two) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int i = 0; i < k; i += 64, p += 64 * kPanel, a += 64) {
    for (int j = 0; j < 16; ++j, walk.ahead += walk.ahead_step) prefetch_l2(walk.ahead);
    _tile_loadd(6, p, kPanel * 4);
    _tile_loadd(4, a, lda);
    _tile_loadd(7, p + kHalf * 4, kPanel * 4);
    _tile_dpbsud(0, 4, 6);
    _tile_dpbsud(1, 4, 7);
    if (Two) {
      _tile_loadd(5, a + 16 * lda, lda);
      _tile_dpbsud(2, 5, 6);
      _tile_dpbsud(3, 5, 7);
    }
  }
  _tile_stored(0, c, kPanel * 4);
  _tile_stored(1, c + kHalf, kPanel * 4);
  if (Two) {
    _tile_stored(2, c + 16 * kPanel, kPanel * 4);
    _tile_stored(3, c + 16 * kPanel + kHalf, kPanel * 4);
  }
  asm volatile("" ::: "memory");
}

static void amx_by_channel(const Inputs& in, int row, int n, const Matrix& w, PanelWalk walk, float* c) {
  alignas(64) int32_t sums[32 * kPanel];
  const bool offset = w.form.flags & kOffset, wide = w.form.flags & kWideScales;
  const auto* a = static_cast<const int8_t*>(in.rows) + row * in.stride;
  (n > 16 ? amx_int_tile<true> : amx_int_tile<false>)(a, in.stride, w.k, walk.data + header_bytes(w.form), walk, sums);
  for (int j = 0; j < kPanel; j += W) {
    const V scale = load_scales(walk.data, wide, j), zero_of = offset ? load_scales(walk.data, wide, kPanel + j) : scale;
    for (int r = 0; r < n; ++r) {
      const Start start = in.start[row + r];
      const V y = to_floats(add(load_ints(sums + r * kPanel + j), splat_int(offset ? 0 : start.whole))) * (scale * splat(in.scale[row + r]));
      store(c + r * kPanel + j, offset ? fma(zero_of, splat(start.sum), y) : y);
    }
  }
}

struct AmxProduct {
  using A = bf16;
  static constexpr int kRows = 32;
  static TileFunction<A> tile(int rows) { return rows > 16 ? amx_tile<true> : amx_tile<false>; }
};

}  // namespace TANDEM_VARIANT
}  // namespace tandem
