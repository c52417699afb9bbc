// AMX in plain C++, for testing on machines without it that tile_amx.h addresses what it means to. Follows Intel's pseudocode
// (Software Developer's Manual, TDPBF16PS): even and odd products are summed apart, then added to C.
#pragma once
#include <cstring>

#include "common.h"

namespace tandem {
namespace amx_emulated {

struct Tile {
  int rows, row_bytes;
  unsigned char data[16][64];
};
static thread_local Tile tiles[8];

static void load_config(const void* config) {
  const unsigned char* c = static_cast<const unsigned char*>(config);
  for (int i = 0; i < 8; ++i) {
    uint16_t row_bytes;
    std::memcpy(&row_bytes, c + 16 + 2 * i, 2);
    tiles[i].row_bytes = row_bytes;
    tiles[i].rows = c[48 + i];
  }
}
static void load(int t, const void* p, int64_t stride) {
  for (int r = 0; r < tiles[t].rows; ++r) std::memcpy(tiles[t].data[r], static_cast<const char*>(p) + r * stride, tiles[t].row_bytes);
}
static void store(int t, void* p, int64_t stride) {
  for (int r = 0; r < tiles[t].rows; ++r) std::memcpy(static_cast<char*>(p) + r * stride, tiles[t].data[r], tiles[t].row_bytes);
}
static void zero(int t) { std::memset(tiles[t].data, 0, sizeof tiles[t].data); }
static float at(const Tile& t, int row, int i) {
  bf16 x;
  std::memcpy(&x, &t.data[row][2 * i], 2);
  return to_float(x);
}
static void dot(int c, int a, int b) {
  Tile &tc = tiles[c], &ta = tiles[a], &tb = tiles[b];
  for (int m = 0; m < tc.rows; ++m)
    for (int n = 0; n < tc.row_bytes / 4; ++n) {
      float even = 0, odd = 0, value;
      for (int k = 0; k < ta.row_bytes / 4; ++k) {
        even += at(ta, m, 2 * k) * at(tb, k, 2 * n);
        odd += at(ta, m, 2 * k + 1) * at(tb, k, 2 * n + 1);
      }
      std::memcpy(&value, &tc.data[m][4 * n], 4);
      value += even + odd;
      std::memcpy(&tc.data[m][4 * n], &value, 4);
    }
}

// TDPBSUD: signed bytes of a times unsigned ones of b.
static void dot_bytes(int c, int a, int b) {
  Tile &tc = tiles[c], &ta = tiles[a], &tb = tiles[b];
  for (int m = 0; m < tc.rows; ++m)
    for (int n = 0; n < tc.row_bytes / 4; ++n) {
      int32_t value;
      std::memcpy(&value, &tc.data[m][4 * n], 4);
      for (int k = 0; k < ta.row_bytes; ++k)
        value += static_cast<int8_t>(ta.data[m][k]) * static_cast<int>(tb.data[k / 4][4 * n + k % 4]);
      std::memcpy(&tc.data[m][4 * n], &value, 4);
    }
}

}  // namespace amx_emulated
}  // namespace tandem

#define _tile_loadconfig(p) tandem::amx_emulated::load_config(p)
#define _tile_release() (void)0
#define _tile_loadd(t, p, s) tandem::amx_emulated::load(t, p, s)
#define _tile_stored(t, p, s) tandem::amx_emulated::store(t, p, s)
#define _tile_zero(t) tandem::amx_emulated::zero(t)
#define _tile_dpbf16ps(c, a, b) tandem::amx_emulated::dot(c, a, b)
#define _tile_dpbsud(c, a, b) tandem::amx_emulated::dot_bytes(c, a, b)
